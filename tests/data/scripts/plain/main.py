"""A rank without TensorFlow, which fails on request.

It opens its port, connects to another rank and writes progress records."""

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time

from neighbour import loss_at

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--seconds", type=float, default=0.1)
parser.add_argument("--fast", default="", help="file; once it is there, steps take no time")
parser.add_argument("--fail", default="", help="task that imports what is not there")
parser.add_argument("--deaf", action="store_true", help="ignore TERM")
parser.add_argument("--child", action="store_true", help="start a child in a session of its own")
parser.add_argument("--hang", default="", help="task that makes no step after the fifth, or all")
parser.add_argument("--abort", default="", help="task that crashes after the fifth step")
parser.add_argument("--eat", default="", help="task that takes all memory after the fifth step")
parser.add_argument("--asleep", default="", help="task that never opens its port")
parser.add_argument("--attempts", type=int, default=99, help="how many of them go wrong")
parser.add_argument("--slow-attempts", type=int, default=99, help="how many of them take time")
args = parser.parse_args()

config = json.loads(os.environ["TF_CONFIG"])
kind, index = config["task"]["type"], config["task"]["index"]
task = f"{kind}-{index}"
attempt = int(os.environ["TRAIN_ATTEMPT"])
print("TF_CONFIG", os.environ["TF_CONFIG"])
if args.deaf:
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if args.child:
    subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
if task == args.asleep:
    time.sleep(600)
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if kind in config["cluster"]:
    server.bind(("0.0.0.0", int(config["cluster"][kind][index].rpartition(":")[2])))
    server.listen()


def join():
    """Connect to another rank, and stay connected."""
    own = config["cluster"].get(kind, [])[index : index + 1]
    others = [place for places in config["cluster"].values() for place in places]
    for place in [place for place in others if place not in own][:1]:
        host, _, port = place.rpartition(":")
        while not held:
            try:
                held.append(socket.create_connection((host.strip("[]"), int(port)), timeout=5))
            except OSError:
                time.sleep(0.2)


held = []
threading.Thread(target=join, daemon=True).start()
for step in range(1, args.steps + 1):
    record = {
        "phase": "training",
        "step": step,
        "steps": args.steps,
        "epoch": 1,
        "epochs": 1,
        "loss": loss_at(step),
        "metrics": {"accuracy": step / args.steps},
    }
    with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as stream:
        stream.write(json.dumps(record) + "\n")
    if attempt <= args.slow_attempts and not os.path.exists(args.fast):
        time.sleep(args.seconds)
    wrong = task if attempt <= args.attempts else None
    if step == 5 and wrong and args.hang in (wrong, "all"):
        time.sleep(600)
    if step == 5 and wrong == args.abort:
        os.abort()
    eaten = []
    while step == 5 and wrong == args.eat:
        eaten.append(b"x" * 2**25)
    if wrong == args.fail:
        import a_module_that_is_missing  # noqa: F401
print("secret is", "set" if os.environ.get("SECRET") else "not set")
