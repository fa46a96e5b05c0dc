"""The error that ended a script, among all errors in its log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.host import endings
from train.host import end_causes, ends, tracebacks
from train.host.terminal import lines_of

ALL = {**endings.AFTERWARDS, **endings.EXCEPTIONS, **endings.WITHOUT_EXCEPTION}


def reason_of(log: str, code: int = 1) -> str:
    return ends.explain(code, log, (0, 0), 700, "")[1]


@pytest.mark.parametrize("name", ALL)
def test_the_reason_names_the_error_that_ended_the_script(name: str) -> None:
    log, expected = ALL[name]
    reason = reason_of(log)
    assert expected in reason
    for secondary in ("Broken pipe", "reset by peer", "EOFError", "TypeError"):
        assert secondary in expected or secondary not in reason


@pytest.mark.parametrize("name", endings.AFTERWARDS)
def test_the_same_behind_much_output(name: str) -> None:
    log, expected = endings.AFTERWARDS[name]
    output = "".join(f"step {step} loss {1 / step:.3f}\n" for step in range(1, 200))
    assert expected in reason_of(output + log)


@pytest.mark.parametrize(
    "text",
    ["x" * 5000, "two\nlines", "a\x1b[31mcolor\x07 and \u202e\u2028 more", "\ta\tb  c\r"],
)
def test_a_reason_is_one_line_of_bounded_length(text: str) -> None:
    for log in (endings.TRACE + f"ValueError: {text}\n", text):
        for full in ("", "/data/" + "y" * 200):
            _, reason = ends.explain(1, log, (0, 0), 700, full)
            assert len(reason) <= ends.MAX_REASON
            assert reason.isprintable()
    assert reason_of(endings.TRACE + "ValueError: " + "x" * 5000).endswith("xxx...")


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ("", 1),
        ("10/10 [====================] - 3s 0.1s/step - loss: 0.5\n", 1),
        ("Epoch 2/5\n", 1),
        ("ends with another rank, asked to end\n", 143),
        (endings.CHATTER, 1),
    ],
    ids=["nothing", "a bar", "an epoch", "asked to end", "TensorFlow's output"],
)
def test_output_that_explains_nothing_is_not_a_reason(log: str, code: int) -> None:
    assert reason_of(log, code) == f"exited with code {code}"


def test_a_disk_that_was_full_at_the_last_flush() -> None:
    log = "Exception ignored in: <_io.TextIOWrapper name='<stdout>' mode='w' encoding='utf-8'>\n"
    log += "OSError: [Errno 28] No space left on device\n"
    assert ends.explain(120, log, (0, 0), 700, "") == (
        end_causes.DISK,
        "exited with code 120: OSError: [Errno 28] No space left on device",
    )


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ("MemoryError\n", end_causes.EXIT),
        ("OSError: [Errno 28] No space left on device\n", end_causes.EXIT),
        (
            "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>\n",
            end_causes.EXIT,
        ),
    ],
)
def test_only_the_decisive_error_decides_the_cause(before: str, cause: str) -> None:
    for log in (
        "Exception in thread Thread-1:\n" + endings.INNER + before + endings.BUG,
        endings.BUG + "Exception ignored in: <function A.__del__ at 0x7f>\n" + before,
    ):
        assert ends.explain(1, log, (0, 0), 700, "") == (cause, endings.REPORTED)


SCRIPTS = {
    "multiprocessing": (
        "import multiprocessing as mp, sys\n"
        "def load(): raise ValueError('label 12 of 10')\n"
        "if __name__ == '__main__':\n"
        "    p = mp.get_context('spawn').Process(target=load); p.start(); p.join()\n"
        "    sys.exit(p.exitcode)\n",
        "in a child process: ValueError: label 12 of 10",
    ),
    "a pool": (
        "from concurrent.futures import ProcessPoolExecutor\n"
        "def load(n): raise ValueError('label 12 of 10')\n"
        "if __name__ == '__main__':\n"
        "    with ProcessPoolExecutor(1) as pool: list(pool.map(load, [1]))\n",
        "code 1: ValueError: label 12 of 10",
    ),
    "everything at once": (
        "import atexit, gc, logging, os, threading\n"
        "class A:\n    def __del__(self): raise AttributeError('no debug')\n"
        "a = A()\n"
        "def late(): raise BrokenPipeError(32, 'Broken pipe')\n"
        "atexit.register(late)\n"
        "atexit.register(logging.warning, '%d', 'x')\n"
        "threading.Timer(0.1, late).start()\n"
        "raise ValueError('label 12 of 10')\n",
        "code 1: ValueError: label 12 of 10",
    ),
    "asyncio": (
        "import asyncio\n"
        "async def fail(): raise ConnectionResetError('gone')\n"
        "async def main():\n"
        "    global task\n"
        "    task = asyncio.create_task(fail()); await asyncio.sleep(0)\n"
        "    raise ValueError('label 12 of 10')\n"
        "asyncio.run(main())\n",
        "code 1: ValueError: label 12 of 10",
    ),
    "a group of tasks": (
        "import asyncio\n"
        "async def fail(): raise ValueError('label 12 of 10')\n"
        "async def main():\n"
        "    async with asyncio.TaskGroup() as group: group.create_task(fail())\n"
        "asyncio.run(main())\n",
        "(1 sub-exception): ValueError: label 12 of 10",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_this_python_prints(name: str, tmp_path: Path) -> None:
    source, expected = SCRIPTS[name]
    script = tmp_path / "main.py"
    script.write_text(source)
    ran = subprocess.run(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert ran.returncode == 1
    assert expected in reason_of(ran.stdout)


def test_the_traceback_that_counts_is_shown() -> None:
    log = "loss: 0.4" + endings.BUG + "Exception in thread Thread-1:\n" + endings.RESET
    ending = tracebacks.ending(lines_of(log.encode()), 1)
    assert ending is not None
    assert ending.shown == endings.BUG.splitlines()
    long = endings.TRACE + '  File "x.py", line 1, in f\n' * 60 + endings.GRAPH.partition("()\n")[2]
    ending = tracebacks.ending(lines_of((long + "the sentence\n\t [[{{node x}}]]\n").encode()), 1)
    assert ending is not None
    assert ending.shown[:2] == ["Traceback (most recent call last):", "  ..."]
    assert ending.shown[-2:] == [
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:",
        "the sentence",
    ]
    assert len(ending.shown) <= 20


CRASHED = """\
step 40
{said}Fatal Python error: Aborted

Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f00 (most recent call first):
  File "/v/lib/python3.11/site-packages/cv2/__init__.py", line 9 in resize
  File "/x/code/main.py", line 12 in load

Thread 0x00007f02 (most recent call first):
  File "/x/code/data.py", line 3 in prefetch

Extension modules: numpy._core, cv2 (total: 2)
"""


@pytest.mark.parametrize(
    ("said", "code", "reason"),
    [
        (
            "",
            -11,
            "was killed by SIGSEGV (signal 11); its Python code was at main.py, line 12 in load",
        ),
        (
            "free(): invalid pointer\n",
            -6,
            "(signal 6): free(): invalid pointer; its Python code was at",
        ),
        ("F0000 00:00:17.5 12 x.cc:9] Check failed: a == b\n", -6, "x.cc:9] Check failed: a == b;"),
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n"
            "  what():  no device\n",
            -6,
            "(signal 6): no device; its Python code was at main.py, line 12 in load",
        ),
    ],
)
def test_a_crash_in_native_code(said: str, code: int, reason: str) -> None:
    cause, text = ends.explain(code, CRASHED.format(said=said), (0, 0), 700, "")
    assert cause == end_causes.SIGNAL
    assert reason in text


def test_the_stack_of_a_crash_is_shown() -> None:
    assert tracebacks.stack_of(CRASHED.format(said="").splitlines()) == [
        "Fatal Python error: Aborted",
        "Current thread 0x00007f00 (most recent call first):",
        '  File "/v/lib/python3.11/site-packages/cv2/__init__.py", line 9 in resize',
        '  File "/x/code/main.py", line 12 in load',
    ]
    assert tracebacks.stack_of(["step 40"]) == []
