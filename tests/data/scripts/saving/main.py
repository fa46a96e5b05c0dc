"""A rank without TensorFlow that saves its step on SIGTERM, and continues from there, faster."""

import json
import os
import signal
import socket
import sys
import threading
import time

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
config = json.loads(os.environ["TF_CONFIG"])
workers, index = config["cluster"]["worker"], config["task"]["index"]
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("0.0.0.0", int(workers[index].rpartition(":")[2])))
server.listen()


def join():
    """Connect to the next rank, and stay connected."""
    host, _, port = workers[(index + 1) % len(workers)].rpartition(":")
    while not held:
        try:
            held.append(socket.create_connection((host, int(port)), timeout=5))
        except OSError:
            time.sleep(0.2)


held = []
threading.Thread(target=join, daemon=True).start()
checkpoint = os.path.join(os.environ["TRAIN_CHECKPOINT_DIR"], "step")
first = 0
if os.path.exists(checkpoint):
    with open(checkpoint) as stream:
        first = int(stream.read())
print("gpus", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
print("begins after step", first, flush=True)
for step in range(first + 1, steps + 1):
    with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as stream:
        record = {"phase": "training", "step": step, "steps": steps, "loss": 1 / step}
        stream.write(json.dumps(record) + "\n")
    time.sleep(seconds if os.environ["TRAIN_ATTEMPT"] == "1" else seconds / 20)
    if asked:
        os.makedirs(os.path.dirname(checkpoint), exist_ok=True)
        with open(checkpoint, "w") as stream:
            stream.write(str(step))
        print("saved step", step, flush=True)
        sys.exit(143)
