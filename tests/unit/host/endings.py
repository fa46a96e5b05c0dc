"""Ends of scripts: the last output of a rank, and a part of the reason that must be reported.

CPython 3.8 to 3.13 and the named libraries print these layouts. Only the paths were shortened.
"""

from __future__ import annotations

TRACE = 'Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n    train()\n'
BUG = TRACE + "ValueError: label 12 of 10\n"
REPORTED = "exited with code 1: ValueError: label 12 of 10"
INNER = 'Traceback (most recent call last):\n  File "lib.py", line 9, in work\n    go()\n'
BROKEN = INNER + "BrokenPipeError: [Errno 32] Broken pipe\n"
RESET = INNER + "ConnectionResetError: [Errno 104] Connection reset by peer\n"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
CHILD = (
    "Traceback (most recent call last):\n"
    '  File "/usr/lib/python3.11/multiprocessing/process.py", line 314, in _bootstrap\n'
    "    self.run()\n"
    '  File "main.py", line 2, in load\n'
)
SPAWNED = (
    "Traceback (most recent call last):\n"
    '  File "<string>", line 1, in <module>\n'
    '  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 122, in spawn_main\n'
    "    exitcode = _main(fd, parent_sentinel)\n"
)
REMOTE = '%s: \n"""\n' + INNER + 'ValueError: label 12 of 10\n"""\n' + CAUSE + BUG
TENSORFLOW = "tensorflow.python.framework.errors_impl."
GRAPH = (
    TRACE + TENSORFLOW + "InvalidArgumentError: Graph execution error:\n\n"
    "Detected at node loss/Softmax defined at (most recent call last):\n"
    '  File "main.py", line 7, in <module>\n\n'
    '  File "/v/site-packages/tf_keras/src/engine/training.py", line 1804, in fit\n\n'
)
CHATTER = (
    "E0000 00:00:1795627532.4 18493 coordination_service_agent.cc:9] Socket closed\n"
    "2026-11-21 17:23:01.123456: W tensorflow/core/local_rendezvous.cc:412] is aborting\n"
)

#: By name: the output, a part of the reason, and a text that the reason must not contain.
AFTERWARDS = {
    "an exception that __del__ raises": (
        BUG + "Exception ignored in: <function A.__del__ at 0x7f>\n" + BROKEN,
        REPORTED,
    ),
    "an exception ignored without a traceback": (
        BUG + "Exception ignored in: <_io.TextIOWrapper name='<stdout>' encoding='utf-8'>\n"
        "BrokenPipeError: [Errno 32] Broken pipe\n",
        REPORTED,
    ),
    "a deallocator of Python 3.14": (
        BUG + "Exception ignored while calling deallocator <function A.__del__>:\n" + BROKEN,
        REPORTED,
    ),
    "atexit": (
        BUG + "Exception ignored in atexit callback <function bye at 0x7f>:\n" + RESET,
        REPORTED,
    ),
    "atexit of Python 3.8": (BUG + "Error in atexit._run_exitfuncs:\n" + RESET, REPORTED),
    "logging": (
        BUG + "--- Logging error ---\n" + BROKEN + 'Call stack:\n  File "main.py", line 3, in bye\n'
        "    logging.warning('%d', 'x')\nMessage: '%d'\nArguments: ('x',)\n",
        REPORTED,
    ),
    "logging before": (
        "--- Logging error ---\n" + INNER + "TypeError: %d format\nCall stack:\n"
        "  File \"main.py\", line 3, in <module>\nMessage: '%d'\nArguments: ('x',)\n" + BUG,
        REPORTED,
    ),
    "a thread": (BUG + "Exception in thread Thread-3 (prefetch):\n" + RESET, REPORTED),
    "a thread of Python 3.8": (BUG + "Exception in thread Thread-3:\n" + RESET, REPORTED),
    "a thread before": ("Exception in thread Thread-3:\n" + RESET + BUG, REPORTED),
    "a child process": (
        BUG + "Process SpawnProcess-1:\n" + CHILD + "BrokenPipeError: [Errno 32] Broken pipe\n",
        REPORTED,
    ),
    "a worker of a pool": (BUG + "Process ForkPoolWorker-1:\n" + CHILD + "EOFError\n", REPORTED),
    "a child process that cannot start": (BUG + SPAWNED + "EOFError: Ran out of input\n", REPORTED),
    "the feeder of a queue": (
        BUG + "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3.11/multiprocessing/queues.py", line 250, in _feed\n'
        "    send_bytes(obj)\nBrokenPipeError: [Errno 32] Broken pipe\n",
        REPORTED,
    ),
    "another program": (
        BUG + TRACE.replace("main", "loader") + "BrokenPipeError: [Errno 32]\n",
        REPORTED,
    ),
    "a program that the script started": (
        BUG + TRACE + "subprocess.CalledProcessError: Command '['python', 'prepare.py']' returned "
        "non-zero exit status 1.\n",
        REPORTED,
    ),
    "a rank of torchrun": (
        "".join(f"[rank0]: {line}\n" for line in BUG.splitlines())
        + TRACE
        + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        + "=" * 60
        + "\ntrain.py FAILED\n",
        REPORTED,
    ),
    "a process of torch.multiprocessing": (
        SPAWNED
        + "ValueError: label 12 of 10\n"
        + TRACE
        + "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit "
        "code 1\n",
        "ValueError: label 12 of 10",
    ),
    "a task of asyncio": (
        BUG + "Task exception was never retrieved\n"
        "future: <Task finished name='Task-2' coro=<g() done> exception=ConnectionResetError()>\n"
        + RESET,
        REPORTED,
    ),
    "a callback of asyncio, logged": (
        BUG
        + "ERROR:asyncio:Exception in callback Loop.read()\nhandle: <Handle Loop.read()>\n"
        + RESET,
        REPORTED,
    ),
    "a finally whose pipe is closed": (BUG + HANDLING + BROKEN, REPORTED),
    "wandb": (
        BUG + "wandb: \nwandb: 🚀 View run x at: https://wandb.ai/a/b\nwandb: Find logs at: ./w\n",
        REPORTED,
    ),
    "TensorFlow": (BUG + CHATTER, REPORTED),
    "a bar that tqdm closes": (
        BUG + "\r 40%|####      | 4/10 [00:00<00:00,  8.94it/s]\n",
        REPORTED,
    ),
    "a warning of the resource tracker": (
        BUG + "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: "
        "resource_tracker: There appear to be 1 leaked semaphore objects\n  warnings.warn('x')\n",
        REPORTED,
    ),
}

EXCEPTIONS = {
    "without Error in its name": (TRACE + "_queue.Empty\n", "code 1: _queue.Empty"),
    "of the script": (
        TRACE + "OutOfData: shard 3 is empty\n",
        "code 1: OutOfData: shard 3 is empty",
    ),
    "of a function": (TRACE + "main.<locals>.OutOfData: 3\n", "code 1: main.<locals>.OutOfData: 3"),
    "in another script": (TRACE + "Größe: zu groß\n", "code 1: Größe: zu groß"),
    "of a module in C": (
        TRACE + "struct.error: unpack requires 4 bytes\n",
        "code 1: struct.error: unp",
    ),
    "StopIteration": (TRACE + "StopIteration\n", "code 1: StopIteration"),
    "KeyboardInterrupt": (TRACE + "KeyboardInterrupt\n", "code 1: KeyboardInterrupt"),
    "of a program": (
        TRACE
        + "subprocess.CalledProcessError: Command '['false']' returned non-zero exit status 1.\n",
        "subprocess.CalledProcessError: Command '['false']' returned",
    ),
    "a cause and what follows": (
        INNER + "KeyError: 'data'\n" + CAUSE + BUG,
        REPORTED,
    ),
    "a fallback that fails": (
        INNER
        + "KeyError: 'data'\n"
        + HANDLING
        + TRACE
        + "requests.exceptions.ConnectionError: gone\n",
        "code 1: requests.exceptions.ConnectionError: gone",
    ),
    "of a process pool": (REMOTE % "concurrent.futures.process._RemoteTraceback", REPORTED),
    "of multiprocessing.Pool": (REMOTE % "multiprocessing.pool.RemoteTraceback", REPORTED),
    "of a worker of a DataLoader": (
        TRACE + "RuntimeError: Caught ValueError in DataLoader worker process 0.\n"
        'Original Traceback (most recent call last):\n  File "worker.py", line 3, in _loop\n'
        "    data = fetch()\nValueError: label 12 of 10\n\n",
        "Caught ValueError in DataLoader worker process 0: ValueError: label 12 of 10",
    ),
    "a group": (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "x.py", line 7, in <module>\n'
        "  |     main()\n  | ExceptionGroup: loaders (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n"
        '    |   File "x.py", line 4, in main\n    |     a()\n    | ValueError: label 12 of 10\n'
        "    +---------------- 2 ----------------\n    | BrokenPipeError: [Errno 32] Broken pipe\n"
        "    +------------------------------------\n",
        "code 1: ExceptionGroup: loaders (2 sub-exceptions): ValueError: label 12 of 10",
    ),
    "with a note": (BUG[:-1] + "\nin shard 3\n", REPORTED),
    "in color": (
        'Traceback (most recent call last):\n  File \x1b[35m"main.py"\x1b[0m, line \x1b[35m3\x1b[0m'
        ", in "
        "\x1b[35m<module>\x1b[0m\n    \x1b[31mtrain\x1b[0m\x1b[1;31m()\x1b[0m\n"
        "    \x1b[31m~~~~~\x1b[0m\x1b[1;31m^^\x1b[0m\n"
        "\x1b[1;35mOutOfData\x1b[0m: \x1b[35mshard 3\x1b[0m\n",
        "code 1: OutOfData: shard 3",
    ),
    "a syntax error": (
        '  File "main.py", line 2\n    def f(:\n          ^\nSyntaxError: invalid syntax\n',
        "code 1: SyntaxError: invalid syntax",
    ),
    "a syntax error in a module": (
        TRACE + '  File "data.py", line 2\n    x\n    ^\nIndentationError: unexpected indent\n',
        "code 1: IndentationError: unexpected indent",
    ),
    "a recursion": (
        TRACE + "  [Previous line repeated 996 more times]\nRecursionError: maximum depth\n",
        "code 1: RecursionError: maximum depth",
    ),
    "behind a bar of Keras": (
        "1/9 - loss: 0.9" + 15 * "\b" + "\r2/9 [=>...] - ETA: 3s - loss: 0.8" + BUG,
        REPORTED,
    ),
    "behind a bar of tqdm": (
        "\r 10%|#   | 1/10\r 40%|####      | 4/10 [00:00<00:00]" + BUG,
        REPORTED,
    ),
    "with the name of the rank": (
        "".join(f"[rank0]: {line}\n" for line in BUG.splitlines()),
        REPORTED,
    ),
    "between other output": (
        'Traceback (most recent call last):\n  File "main.py", line 3, in <module>\nread 40 files\n'
        "    train()\nloss: 0.5\nValueError: label 12 of 10\n",
        REPORTED,
    ),
    "cut off at the beginning": (
        '    run()\n  File "main.py", line 9, in run\n    go()\nOutOfData: shard 3\n',
        "code 1: OutOfData: shard 3",
    ),
    "of rich": (
        "╭─────────────────── Traceback (most recent call last) ───────────────────╮\n"
        "│ /x/main.py:7 in <module>                                                │\n"
        "│ ❱ 7 main()                                                              │\n"
        "╰─────────────────────────────────────────────────────────────────────────╯\n"
        "OutOfData: the data of shard number three are not as they should be, see\nthe log\n",
        "code 1: OutOfData: the data of shard number three are not as they should be, see the log",
    ),
    "of loguru": (
        "2026-11-25 17:25:24.759 | ERROR    | __main__:<module>:5 - An error has been caught in "
        "function '<module>', process 'MainProcess' (18399), thread 'MainThread' (14062792746):\n"
        'Traceback (most recent call last):\n\n> File "main.py", line 5, in <module>\n    main()\n'
        '    └ <function main at 0x7fe6>\n\n  File "main.py", line 4, in main\n    go()\n\n'
        "OutOfData: shard 3\n",
        "code 1: OutOfData: shard 3",
    ),
    "printed by logging": (
        "ERROR:root:training failed\n" + INNER + "OutOfData: 3\n",
        "code 1: OutOfData: 3",
    ),
    "of Hydra": (
        "Error executing job with overrides: ['lr=1']\n" + BUG + "\nSet the environment variable "
        "HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
        REPORTED,
    ),
    "a message of several lines": (
        TRACE + "ValueError: could not load any of:\nImportError: liba.so\nImportError: libb.so\n",
        "code 1: ValueError: could not load any of: ImportError: liba.so",
    ),
    "a message that begins in the next line": (
        SPAWNED + "RuntimeError: \n        An attempt has been made to start a new process before\n"
        "        the end of its bootstrapping phase.\n\n        This probably means\n",
        "in a child process: RuntimeError: An attempt has been made to start a new process before",
    ),
    "of pydantic": (
        TRACE + "pydantic_core._pydantic_core.ValidationError: 1 validation error for A\nlr\n"
        "  Input should be a valid number [type=float_parsing]\n",
        "ValidationError: 1 validation error for A: lr Input should be a valid number",
    ),
    "of a graph": (
        GRAPH + "Received a label value of 12 which is outside the valid range of [0, 10).\n"
        "\t [[{{node loss/Softmax}}]] [Op:__inference_train_function_407]\n",
        "Graph execution error: Received a label value of 12 which is outside the valid range",
    ),
    "of a graph with several roots": (
        GRAPH.replace(
            "Detected",
            "2 root error(s) found.\n  (0) INVALID_ARGUMENT:  a label of 12\n"
            "\t [[{{node loss}}]]\n  (1) CANCELLED:  stopped\n0 successful operations.\nDetected",
        ),
        "Graph execution error: a label of 12",
    ),
    "in a function of TensorFlow": (
        TRACE
        + 'ValueError: in user code:\n\n    File "main.py", line 11, in f  *\n        go()\n\n'
        "    ValueError: label 12 of 10\n\n",
        "code 1: ValueError: in user code: ValueError: label 12 of 10",
    ),
    "in a layer": (
        TRACE + "ValueError: Exception encountered when calling layer 'd' (type Dense).\n\n"
        'Input 0 of layer "d" is incompatible.\n\nCall arguments received by layer:\n',
        '(type Dense): Input 0 of layer "d" is incompatible.',
    ),
    "in a generator of tf.data": (
        TRACE
        + TENSORFLOW
        + "InvalidArgumentError: {{function_node __wrapped__Next}} ValueError: label\n"
        'Traceback (most recent call last):\n\n  File "script_ops.py", line 269, in __call__\n'
        "    ret = func(*args)\n\nValueError: label 12 of 10\n\n\n\t [[{{node PyFunc}}]]\n",
        REPORTED,
    ),
    "a library that TensorFlow lacks": (
        TRACE + 'ImportError: Traceback (most recent call last):\n  File "pywrap.py", line 73, in '
        "<module>\n    load()\nImportError: libcudart.so.12: cannot open shared object file\n\n\n"
        "Failed to load the native TensorFlow runtime.\n",
        "code 1: ImportError: libcudart.so.12: cannot open shared object file",
    ),
    "of a thread that ends the script": (
        "step 40\nException in thread Thread-1 (prefetch):\n" + INNER + "OutOfData: shard 3\n",
        "code 1: in a thread: OutOfData: shard 3",
    ),
    "of a child process that ends the script": (
        "Process SpawnProcess-1:\n" + CHILD + "OutOfData: shard 3\n"
        "Process SpawnProcess-2:\n" + CHILD + "BrokenPipeError: [Errno 32] Broken pipe\n",
        "code 1: in a child process: OutOfData: shard 3",
    ),
    "of a child process whose pipe then ends": (
        "Process loader:\n" + CHILD + "OutOfData: shard 3\n" + TRACE + "EOFError\n",
        "code 1: in a child process: OutOfData: shard 3",
    ),
    "behind output like the name of a process": ("Process shards:\n" + BUG, REPORTED),
    "of a graph without stacks": (
        TRACE + TENSORFLOW + "UnavailableError: Graph execution error:\n\n"
        "Detected at node c defined at (most recent call last):\n<stack traces unavailable>\n"
        "Collective ops is aborted by: failed to connect\n\t [[{{node c}}]]\n",
        "UnavailableError: Graph execution error: Collective ops is aborted by: failed to connect",
    ),
    "that was caught, and then another": (INNER + "KeyError: 'cache'\nEpoch 1/2\n" + BUG, REPORTED),
    "that was caught before a connection is lost": (
        INNER + "KeyError: 'cache'\n" + TRACE + "ConnectionResetError: [Errno 104]\n",
        "code 1: ConnectionResetError: [Errno 104]",
    ),
    "without a traceback": (
        "reading\nOutOfDataError: shard 3\n",
        "code 1: OutOfDataError: shard 3",
    ),
    "of sys.excepthook": (
        "Error in sys.excepthook:\n" + BROKEN + "\nOriginal exception was:\n" + BUG,
        REPORTED,
    ),
}

WITHOUT_EXCEPTION = {
    "a sentence about an exception": (
        "ConnectionError was handled, trying again\nno data left, giving up\n",
        "exited with code 1; its last line: no data left, giving up",
    ),
    "sys.exit with a text": (
        "step 3\nno data in /data/train: is it mounted?\n",
        "code 1; its last line: no data in /data/train: is it mounted?",
    ),
    "sys.exit with a text of two lines": (
        "step 3\nno data in /data/train:\n  is it mounted?\n",
        "its last line: no data in /data/train: is it mounted?",
    ),
    "sys.exit with a text after a date": (
        "step 3\n05/27 10:14:15 no data in root=/data\n",
        "its last line: 05/27 10:14:15 no data in root=/data",
    ),
    "sys.exit with a text after a number of a total": (
        "step 3\n1/2 - 30s without an answer in step=4\n",
        "its last line: 1/2 - 30s without an answer in step=4",
    ),
    "sys.exit with a text, before bars": (
        "no data in /data\n1/9 [>..] - ETA: 1:40WARNING\n9/9 - 3s - loss: 0.5000\n"
        "9/9 ━━━━━ 1:40 9ms/step\n9/9 [===]\n9/9 [=>.\n",
        "its last line: no data in /data",
    ),
    "sys.exit with a text, and an exception ignored": (
        "no data in /data\nException ignored in: <function A.__del__ at 0x7f>\n" + BROKEN,
        "its last line: no data in /data",
    ),
    "sys.exit with a text, long after an error was caught": (
        INNER + "KeyError: 'cache'\nEpoch 1/2\nEpoch 2/2\nno data in /data\n",
        "its last line: no data in /data",
    ),
    "argparse": (
        "usage: main.py [-h] [--lr LR]\nmain.py: error: unrecognized arguments: --foo\n",
        "code 1: main.py: error: unrecognized arguments: --foo",
    ),
    "click": (
        "Usage: main.py [OPTIONS]\nTry 'main.py --help' for help.\n\n"
        "Error: No such option '--foo'.\n",
        "code 1: Error: No such option '--foo'.",
    ),
    "typer": (
        "Usage: main.py [OPTIONS]\nTry 'main.py --help' for help.\n"
        "╭─ Error ─────────────────────╮\n│ No such option: --foo       │\n"
        "╰─────────────────────────────╯\n",
        "code 1: Error: No such option: --foo",
    ),
    "absl": (
        "FATAL Flags parsing error: Unknown command line flag 'foo'\n"
        "Pass --helpshort or --helpfull to see help on flags.\n",
        "Flags parsing error: Unknown command line flag 'foo'",
    ),
    "fire": (
        "ERROR: Could not consume arg: --foo=3\nUsage: main.py -\n\n"
        "For detailed information on this command, run:\n  main.py - --help\n",
        "code 1: ERROR: Could not consume arg: --foo=3",
    ),
    "Hydra": (
        "Could not override 'lr'.\nTo append to your config use +lr=3\nKey 'lr' is not in struct\n"
        "    full_key: lr\n    object_type=dict\n\nSet the environment variable HYDRA_FULL_ERROR=1 "
        "for a complete stack trace.\n",
        "code 1: Could not override 'lr'.",
    ),
    "Python": (
        "/v/bin/python: can't open file '/x/nofile.py': [Errno 2] No such file or directory\n",
        "code 1: /v/bin/python: can't open file '/x/nofile.py'",
    ),
    "TensorFlow's output": ("no data in /data\n" + CHATTER, "its last line: no data in /data"),
}
