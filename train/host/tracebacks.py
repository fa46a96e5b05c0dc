"""Finds the error that ended a script, from the end of its log.

Many parts of a process print errors, and the last one is often only a consequence: a loader that
finds its pipe closed, a ``__del__`` at the interpreter's exit. The log is therefore split into
blocks, each of which is a traceback with its exception and message. A block has an owner:

* the script itself: an uncaught exception, or one that the script printed before it exited;
* a thread, a child process or an asyncio task, which the script may survive;
* errors that Python reports and ignores: in ``__del__``, ``atexit``, ``logging``.

In a chain (``During handling of the above exception, ...``), the last block ended the script.
Without a block, the message of an argument parser counts, or else the last line of the output.

The layouts are those of CPython 3.8 to 3.14, concurrent.futures and multiprocessing (tracebacks of
other processes in a message), exception groups, rich, loguru, PyTorch and TensorFlow.
"""

from __future__ import annotations

import bisect
import re
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import log_shapes

#: Maximum length of a shown text.
MAX_TEXT = 300
#: Number of lines to show of a traceback with its header, and of a message after its first line.
_TRACE_LINES, _MESSAGE_LINES = 14, 8

#: Owners of a block, as shown before its text.
SCRIPT = ""
THREAD = "in a thread"
CHILD = "in a child process"
TASK = "in a task of asyncio"
IGNORED = "ignored"


class Block(NamedTuple):
    """A traceback with its exception; positions are line numbers."""

    owner: str
    begin: int  # the line that names the owner, or else the header
    header: int
    at: int  # the exception
    end: int  # after the message
    link: str  # its relation to the previous block, if any: a key of _LINKS
    nested: bool  # whether it is in the message of the previous block, with details


class Ending(NamedTuple):
    """The error that ended a script."""

    text: str  # one line: name and message of an exception, with its explanation
    brief: str  # the same without later parts of the message
    owner: str  # SCRIPT, THREAD, CHILD, TASK or IGNORED
    certain: bool  # whether it is an error, not only the last line
    error: List[str]  # the lines of the exception and its message
    before: List[str]  # the lines before
    shown: List[str]  # the lines to show to the user


_HEADER = re.compile(
    r"^(?P<prefix>.*?)Traceback \(most recent call last\)(?::|(?P<box> [─-]+[╮+]))$"
)
_GROUP = re.compile(r"^(?P<indent> *)\+ Exception Group Traceback \(most recent call last\):$")
_GROUP_LINE = re.compile(r"^ +[|+]")
_LEAF = re.compile(r"^ +\| (?P<text>\S.*)$")
_SUB_EXCEPTIONS = re.compile(r"\(\d+ sub-exceptions?\)$")
#: Words before a header within the message of another exception.
_NESTED = re.compile(r"^(?:Original|Remote|Worker|Child) $")
_FRAME = re.compile(r'^\s*(?:> )?File "[^"]*", line \d+(?:, in .+)?$')
_SYNTAX_FRAME = re.compile(r'^  File "[^"]+", line \d+$')
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError)\b")
_TOP_FRAME = re.compile(r", in (?:<module>|_run_module_as_main)$")
#: Python's exit code if the output could not be written at exit.
_UNFLUSHED = 120
_BOX = "│╭╰├╮╯|+"
#: A line with the name of an exception, and optionally a message.
_EXCEPTION = re.compile(
    r"^(?P<name>[^\W\d]\w*(?:\.(?:<locals>|[^\W\d]\w*))*)(?::(?: (?P<message>.*))?)?$"
)
#: The same without a traceback: only unambiguous names.
_BARE = re.compile(
    r"^(?:Exception(?=:)|[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout))(?::.*)?$"
)
_NO_NAMES = frozenset(
    "wandb usage Usage loss step epoch INFO WARNING ERROR DEBUG CRITICAL FATAL Epoch Step "
    "Loss Note note Warning".split()
)
_LINKS = {
    "During handling of the above exception, another exception occurred:": "handling",
    "The above exception was the direct cause of the following exception:": "cause",
}
_OWNERS = (
    (re.compile(r"^Exception in thread .+|^Unhandled exception in thread "), THREAD),
    (re.compile(r"^Process \S.*:$"), CHILD),
    (
        re.compile(
            r"\b(?:Task|Future) exception was never retrieved|^Exception in callback |"
            r"\bUnhandled exception in event loop"
        ),
        TASK,
    ),
    (
        re.compile(
            r"^Exception ignored |^Error in (?:atexit\._run_exitfuncs|sys\.excepthook):|"
            r"^--- Logging error ---$"
        ),
        IGNORED,
    ),
    (re.compile(r"^Original exception was:$"), SCRIPT),
)
#: Maximum number of lines between the one that names asyncio and its traceback.
_ABOUT_TASK = re.compile(
    r"^(?:future|handle|task|protocol|transport|source_traceback|context|message)\b|"
    r"^Object created at|^ "
)
_PROCESS_FRAME = re.compile(
    r'multiprocessing/(?:spawn|forkserver|resource_tracker)\.py", line \d+, in \w*main$|'
    r'multiprocessing/pool\.py", line \d+, in worker$|'
    r'concurrent/futures/process\.py", line \d+, in _process_worker$'
)
_THREAD_FRAME = re.compile(
    r'/threading\.py", line \d+, in _bootstrap|multiprocessing/queues\.py", line \d+, in _feed$'
)
#: Errors of other parts of a job after one part has failed, such as a process that was started.
_CONSEQUENCE = re.compile(
    r"^(?:[\w.]+\.)?(?:BrokenPipeError|ConnectionResetError|ConnectionAbortedError|"
    r"ConnectionRefusedError|EOFError|CancelledError|CalledProcessError|ChildFailedError|"
    r"ProcessExitedException)\b"
)
_CLOSED = re.compile(r"^(?:BrokenPipeError|EOFError)\b")

#: A part of a message that JAX repeats for each step that it has not completed yet.
_REPEATED = re.compile(r"(\b[A-Z][\w ]+: )\1+")

#: Output that is not a message: logs of TensorFlow, absl and gloo, Python's warnings, trackers.
_CHATTER = re.compile(
    "^(?:%s|%s|%s)|"
    % (log_shapes.logged("[IWEF]"), log_shapes.ADVICE, log_shapes.GLOO)
    + r"^(?:INFO|DEBUG|WARNING)\b|^wandb\b|^Set the environment variable HYDRA_FULL_ERROR|"
    r"^Error executing job with overrides|^\S+\.py:\d+: \w*Warning: |^Extension modules: |^[-=]+$|"
    r"^For detailed information on this command|^Pass --help|^Try '.*' for help"
)
#: Output of a training run that continues.
_EPOCH = re.compile("^" + log_shapes.EPOCH)
#: Bars of Keras, also one that was cut off within its drawing, and of tqdm.
_BAR = re.compile(
    r"^\s*(?:%s(?(eta)|(?= - | [0-9]| *$))|[0-9]{1,15}/[0-9]{1,15} (?:\[=*>?\.*(?:\]|$)|━{2}))|%s"
    % (log_shapes.KERAS_BAR, log_shapes.TQDM)
)
#: Number of output lines, and of progress bars, after which a printed exception is not the end.
_LATER, _BARS_LATER = 20, 5

#: Messages of argument parsers and of Python itself, without a traceback.
_REFUSALS = re.compile(
    r"^\S+(?: [\w-]+)*: error: .|^Error: .|^ERROR: .|^(?:FATAL )?Flags parsing error: |"
    rf"^Could not override |^{log_shapes.FATAL}|^\S*python[\d.]*: .|^CRITICAL:|^FATAL:"
)
_ERROR_PANEL = re.compile(r"^[╭+][─-]+ Error [─-]+[╮+]$")
#: Minimum width at which a line may have been wrapped.
_NARROW = 55
#: Number of lines at the end in which they are searched.
_REFUSED_WITHIN = 15

#: Beginnings of messages without information, before the informative part.
_EMPTY = re.compile(
    r"Graph execution error:?$|in user code:$|^Exception encountered when calling |:$|^$|"
    r"^\d+ validation errors? for "
)
_NODE = re.compile(r"\{\{function_node [^{}]*\}\} ?")
_OF_GRAPH = re.compile(
    r"^(?:Detected at node |<stack traces unavailable>|Stack trace for op |Original stack trace|"
    r"Node: |\d+ root error|"
    r"\d+ successful operations|\d+ derived errors|Errors may have originated|Input Source)|"
    r"^\s*\[\[\{\{|\(defined at |^\s*\[\[|^:?\{\"created"
)
_ROOT_ERROR = re.compile(r"^\s*\(0\) (?:[A-Z_]+: +)?(?P<text>.+)$")


def ending(lines: Sequence[str], code: int) -> Optional[Ending]:
    """Return the error that ended a script, or None if the log does not show it.

    Args:
        lines: the last lines of its log, as a terminal shows them.
        code: its exit code, which is positive.
    """
    log = _Log(lines)
    if code == _UNFLUSHED:
        unflushed = log.decisive([block for block in log.blocks if block.owner == IGNORED])
        if unflushed is not None:
            return log.ending_of(unflushed)
    own = [block for block in log.blocks if block.owner == SCRIPT and not log.is_passed(block)]
    others = [b for b in log.blocks if b.owner in (THREAD, CHILD, TASK) and not log.is_passed(b)]
    block = log.decisive(own)
    if block is None:
        block = log.bare_exception() or log.decisive(others)
    elif log.is_consequence(block):
        # The script has lost one of its threads or processes, which has printed the reason.
        part = log.decisive([other for other in others if other.at < block.at])
        block = block if part is None or log.is_consequence(part) else part
    return log.ending_of(block) if block is not None else log.ending_without_exception()


class _Log:
    """The end of a log, split into blocks."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)
        self.blocks = list(self._bounded(list(self._found())))
        inside = {n for b in self.blocks for n in range(b.begin, b.at + 1)}
        for block in self.blocks:
            if block.owner in (IGNORED, TASK):
                inside.update(range(block.at, block.end))
        #: Output lines, which are neither blank nor in a block.
        self._plain = [
            (n, line)
            for n, line in enumerate(self.lines)
            if n not in inside and line.strip() and not _CHATTER.match(line)
        ]
        # Frames in the message of a TensorFlow error are indented.
        self._output = [n for n, line in self._plain if line[:1] not in " \t"]
        self._epochs = [n for n, line in self._plain if _EPOCH.match(line)]
        self._bars = [n for n, line in enumerate(self.lines) if _BAR.search(line)]

    # The blocks.

    def _found(self) -> Iterator[Block]:
        """Yield the blocks in order; the ends of their messages are not set yet."""
        place, link = 0, ""
        owner: Optional[str] = None  # owner of the expected traceback
        begin: Optional[int] = None
        patience = 0  # lines of other output allowed before it
        previous: Optional[Block] = None
        named = False  # whether a line named the owner of the previous one
        while place < len(self.lines):
            line = self.lines[place]
            if line in _LINKS:
                link, begin, patience = _LINKS[line], place, 1
                owner = previous.owner if previous and named else None
                place += 1
                continue
            owned = _owner_of(line)
            if owned is not None:
                owner, begin, link = owned, place, ""
                patience = 1 if owned == CHILD else 3
                place += 1
                continue
            block = self._block_at(place, owner, place if begin is None else begin, link)
            if block is not None:
                named = owner is not None
                yield block
                previous, place = block, block.at + 1
                if _GROUP.match(line):
                    place = self._end_of_group(place)
                owner, begin, link = None, None, ""
                continue
            if line.strip() and not (owner == TASK and _ABOUT_TASK.match(line)):
                patience -= 1
                if patience <= 0:
                    owner, begin, link = None, None, ""
            place += 1

    def _block_at(self, place: int, owner: Optional[str], begin: int, link: str) -> Optional[Block]:
        """Return the block whose header or first line is at ``place``, or None."""
        line = self.lines[place]
        nested = False
        group = _GROUP.match(line)
        header = _HEADER.match(line)
        if group:
            at = self._exception_of_group(place, len(group["indent"]))
        elif header:
            nested = bool(_NESTED.match(header["prefix"]))
            if not header["box"]:
                self._drop_prefix(place, header["prefix"])
            at = self._exception_after(place + 1)
        elif place <= 2 and _FRAME.match(line):  # the log begins within a traceback
            at = self._exception_after(place + 1)
        elif _SYNTAX_FRAME.match(line):  # a syntax error has no header
            following = range(place + 1, min(place + 5, len(self.lines)))
            at = next((n for n in following if _SYNTAX.match(self.lines[n])), None)
        elif (owner == IGNORED or link) and _is_exception(self.lines, place):
            at = place if owner == IGNORED or _BARE.match(line) else None
        else:
            return None
        if at is None:
            return None
        if owner is None or (owner == CHILD and self._is_output(begin, place)):
            owner = self._owner_by_frames(place, at)
        return Block(owner, min(begin, place), place, at, at + 1, link, nested)

    def _is_output(self, begin: int, header: int) -> bool:
        """Return whether the script itself printed a line such as ``Process shards:``.

        The line then has no number, and the traceback after it begins at the top of the script.
        """
        numbered = re.search(r"-\d+(?::\d+)*:$", self.lines[begin])
        frame = self.lines[header + 1] if header + 1 < len(self.lines) else ""
        return not numbered and bool(_TOP_FRAME.search(frame))

    def _drop_prefix(self, place: int, prefix: str) -> None:
        """Remove a prefix such as ``[rank0]: `` from each line of a traceback."""
        following = self.lines[place + 1] if place + 1 < len(self.lines) else ""
        if not prefix or not following.startswith(prefix):
            return
        for number in range(place, min(place + 400, len(self.lines))):
            if self.lines[number].startswith(prefix):
                self.lines[number] = self.lines[number][len(prefix) :]
            elif not prefix.strip() and self.lines[number].strip():
                break

    def _exception_after(self, place: int) -> Optional[int]:
        """Return the line of the exception of a traceback whose frames begin at ``place``.

        Lines that other threads printed in between are ignored.
        """
        passed = 0
        for number in range(place, len(self.lines)):
            line = self.lines[number]
            if not line.strip() or line[0] in " \t" + _BOX or line.startswith("> File"):
                continue
            if _HEADER.match(line) or _owner_of(line) is not None or line in _LINKS:
                return None
            if _is_exception(self.lines, number):
                return number
            passed += 1
            if passed > _LATER:
                return None
        return None

    def _exception_of_group(self, place: int, indent: int) -> Optional[int]:
        for number in range(place + 1, len(self.lines)):
            line = self.lines[number]
            if not _GROUP_LINE.match(line):
                return None
            if line[indent : indent + 2] == "| " and _EXCEPTION.match(line[indent + 2 :]):
                return number
        return None

    def _end_of_group(self, place: int) -> int:
        while place < len(self.lines) and _GROUP_LINE.match(self.lines[place]):
            place += 1
        return place

    def _owner_by_frames(self, begin: int, at: int) -> str:
        frames = [line for line in self.lines[begin:at] if _FRAME.match(line)][:3]
        if any(map(_PROCESS_FRAME.search, frames)):
            return CHILD
        return THREAD if frames and _THREAD_FRAME.search(frames[0]) else SCRIPT

    def _bounded(self, blocks: List[Block]) -> Iterator[Block]:
        """Yield the blocks, with the ends of their messages set."""
        marks = [block.begin for block in blocks]
        marks += [n for n, line in enumerate(self.lines) if line in _LINKS or _is_owned(line)]
        marks = [*sorted(marks), len(self.lines)]
        for block in blocks:
            end = marks[bisect.bisect(marks, block.at, 0, len(marks) - 1)]
            if block.owner in (IGNORED, TASK):
                end = self._end_of_report(block.at + 1, end)
            yield block._replace(end=end)

    def _end_of_report(self, place: int, end: int) -> int:
        """Return the line at which an exception's message ends and other output continues."""
        logged = re.compile(r"^(?:Call stack:|Message: |Arguments: )")
        while place < end and (
            self.lines[place][:1] in ("", " ") or logged.match(self.lines[place])
        ):
            place += 1
        return place

    # The decisive block.

    def is_passed(self, block: Block) -> bool:
        """Return whether the script continued after the exception."""
        bars, epochs, output = (
            len(places) - bisect.bisect(places, block.at)
            for places in (self._bars, self._epochs, self._output)
        )
        if bars > _BARS_LATER or epochs:
            return True
        # A message may be of any length.
        return output > _LATER and not self._is_uncaught(block)

    def _is_uncaught(self, block: Block) -> bool:
        """Return whether the traceback begins at the top of the script.

        The traceback of a caught exception begins there only if the exception was caught there.
        """
        frames = [line for line in self.lines[block.header : block.at] if _FRAME.match(line)]
        return bool(frames) and bool(_TOP_FRAME.search(frames[0]))

    def is_consequence(self, block: Block) -> bool:
        """Return whether an exception is a consequence of the failure of another part."""
        return bool(_CONSEQUENCE.match(self._exception(block)))

    def decisive(self, blocks: Sequence[Block]) -> Optional[Block]:
        """Return the last block that is not a consequence of another, or else the last one."""
        chains: List[List[Block]] = []
        for block in blocks:
            if (block.link or block.nested) and chains:
                chains[-1].append(block)
            else:
                chains.append([block])
        ends = [self._end_of_chain(chain) for chain in chains]
        causes = [block for block in ends if not self.is_consequence(block)]
        if causes and ends[-1] not in causes and ends[-1].owner == SCRIPT:
            # A script that caught and printed an error continues, and may lose a connection.
            causes = [block for block in causes if self._is_uncaught(block)]
        counting = causes or ends
        return counting[-1] if counting else None

    def _end_of_chain(self, chain: Sequence[Block]) -> Block:
        """Return the decisive block of a chain, which is usually the last one.

        If that is only the error of a ``finally`` clause whose pipe was closed, return the block
        before it.
        """
        last = chain[-1]
        if len(chain) > 1 and last.link == "handling" and _CLOSED.match(self._exception(last)):
            return last if self.is_consequence(chain[-2]) else chain[-2]
        return last

    def bare_exception(self) -> Optional[Block]:
        """Return a block for the last line outside of all blocks that is certainly an exception.

        Return None if there is no such line, or if the script continued after it.
        """
        covered = {n for block in self.blocks for n in range(block.begin, block.end)}
        for number in range(len(self.lines) - 1, -1, -1):
            line = self.lines[number].strip()
            if number not in covered and _BARE.match(line) and not _CHATTER.match(line):
                end = min(
                    (b.begin for b in self.blocks if b.begin > number), default=len(self.lines)
                )
                block = Block(SCRIPT, number, number, number, end, "", False)
                return None if self.is_passed(block) else block
        return None

    def ending_of(self, block: Block) -> Ending:
        """Return the ending that a block describes."""
        exception, message = self._exception(block), self.lines[block.at + 1 : block.end]
        leaves = self._leaves(block)
        if leaves:
            brief, detail = exception, "; ".join(leaves)
            message, error = [], [*leaves, exception]
        else:
            if self.lines[block.header][:1] in ("╭", "+"):
                exception = _unwrapped(exception, message)
            brief, detail = _NODE.sub("", exception), self._detail(block, message)
            error = [exception, *message]
        text = "%s: %s" % (brief.rstrip(":. "), detail) if detail else brief.rstrip(":")
        if block.nested:
            outer = max(
                (b for b in self.blocks if b.at < block.at), key=lambda b: b.at, default=None
            )
            if outer is not None:
                text = "%s: %s" % (self._exception(outer).rstrip(":. "), text)
        shown = self._shown(block, message)
        before = self.lines[: block.at]
        brief = bounded(brief.rstrip(":"))
        return Ending(bounded(text), brief, block.owner, True, error, before, shown)

    def _exception(self, block: Block) -> str:
        return _REPEATED.sub(r"\1", self.lines[block.at].strip().lstrip("| "))

    def _leaves(self, block: Block) -> List[str]:
        """Return the exceptions in a group, except consequences (unless all are consequences)."""
        if not _GROUP.match(self.lines[block.header]):
            return []
        leaves = []
        for line in self.lines[block.at + 1 : block.end]:
            found = _LEAF.match(line)
            if not _GROUP_LINE.match(line):
                break
            if found and _EXCEPTION.match(found["text"]) and not _HEADER.match(found["text"]):
                leaves.append(found["text"])
        leaves = [leaf for leaf in leaves if not _SUB_EXCEPTIONS.search(leaf)]
        return [leaf for leaf in leaves if not _CONSEQUENCE.match(leaf)] or leaves

    def _detail(self, block: Block, message: Sequence[str]) -> str:
        """Return the explanation in an exception's later lines if the first line has none."""
        first = _EXCEPTION.match(self._exception(block))
        told = (first["message"] or "").strip() if first else ""
        if not _EMPTY.search(told) or (not told and ":" not in self._exception(block)):
            return ""
        if told == "in user code:":
            inner = [line.strip() for line in message if re.match(r"^ {4}\S", line)]
            inner = [line for line in inner if _EXCEPTION.match(line)]
            return inner[-1] if inner else ""
        if "Graph execution error" in told:
            return _NODE.sub("", _of_graph(message))
        return _paragraph(message)

    def _shown(self, block: Block, message: Sequence[str]) -> List[str]:
        trace = self.lines[block.header : block.at]
        if trace and _HEADER.match(trace[0]) and not _GROUP.match(trace[0]):
            trace = ["Traceback (most recent call last):", *trace[1:]]
        if _GROUP.match(self.lines[block.header]):
            rest = self.lines[block.at + 1 : block.end]
            message = [line for line in rest if _GROUP_LINE.match(line)]
        trace = [line for line in trace if line.strip()]
        if len(trace) > _TRACE_LINES:
            trace = [trace[0], "  ...", *trace[2 - _TRACE_LINES :]]
        told = [
            line
            for line in message
            if line.strip()
            and not (_FRAME.match(line) or _OF_GRAPH.search(line) or _CHATTER.match(line))
            and not (_BAR.search(line) or _HEADER.match(line))
        ]
        return [*trace, self.lines[block.at], *told[:_MESSAGE_LINES]]

    def ending_without_exception(self) -> Optional[Ending]:
        """Return the ending of a script that printed no exception itself."""
        ignored = (_BAR, _OF_GRAPH)
        plain = [
            line for _, line in self._plain if not any(pattern.search(line) for pattern in ignored)
        ]
        for number in range(len(plain) - 1, max(-1, len(plain) - 1 - _REFUSED_WITHIN), -1):
            line = plain[number]
            if _ERROR_PANEL.match(line) and number + 1 < len(plain):
                text = plain[number + 1].strip(_BOX + " ")
                return self._plain_ending("Error: " + text, True, plain[number : number + 3])
            if _REFUSALS.match(line):
                return self._plain_ending(line, True, plain[max(0, number - 3) : number + 3])
        last = len(plain) - 1
        while last > 0 and plain[last][:1] in " \t" and len(plain) - last < 10:
            last -= 1
        if last < 0 or _EPOCH.match(plain[last]):
            return None
        text = " ".join(line.strip() for line in plain[last:])
        return self._plain_ending(text, False, plain[max(0, last - 2) :])

    def _plain_ending(self, text: str, certain: bool, shown: List[str]) -> Ending:
        text = bounded(text)
        return Ending(text, text, SCRIPT, certain, [text], self.lines, shown)


def _owner_of(line: str) -> Optional[str]:
    """Return the owner of the next traceback if a line names it, or None."""
    return next((owner for pattern, owner in _OWNERS if pattern.search(line)), None)


def _is_owned(line: str) -> bool:
    return _owner_of(line) is not None


def _is_exception(lines: Sequence[str], number: int) -> bool:
    """Return whether a line after the frames of a traceback is the exception."""
    found = _EXCEPTION.match(lines[number])
    if not found or found["name"] in _NO_NAMES or _CHATTER.match(lines[number]):
        return False
    if lines[number] == found["name"] and found["name"].islower() and "." not in found["name"]:
        return False
    following = lines[number + 1] if number + 1 < len(lines) else ""
    return not following.startswith('  File "')


def _of_graph(message: Sequence[str]) -> str:
    """Return the sentence in ``message`` that explains an error in a TensorFlow graph."""
    for line in message:
        root = _ROOT_ERROR.match(line)
        if root:
            return root["text"]
        plain = line[:1] not in ("", " ", "\t")
        if plain and not _OF_GRAPH.search(line) and not _CHATTER.match(line):
            return line
    return ""


def _unwrapped(exception: str, message: Sequence[str]) -> str:
    """Join the lines of an exception that rich has wrapped at a fixed width."""
    width = len(exception)
    for line in message:
        if width < _NARROW or not line.strip() or _CHATTER.match(line):
            break
        exception, width = "%s %s" % (exception, line.strip()), len(line)
    return exception


def _paragraph(message: Sequence[str]) -> str:
    """Return the first paragraph of a message as one line."""
    found: List[str] = []
    for line in message:
        if line.strip() and not _CHATTER.match(line):
            found.append(line.strip())
        elif found:
            break
    return " ".join(found)


def bounded(text: str, limit: int = MAX_TEXT) -> str:
    """Return a text as one line of at most ``limit`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


#: Output of a library before it aborts.
_ABORTS = re.compile(
    r"^\s*%s +(?P<what>.+)|" % log_shapes.WHAT
    + r"^%s[\d:.]+ +\d+ (?P<log>.+)|" % log_shapes.ABSL.format(level="F")
    + r"^%s(?P<old>.+)|" % log_shapes.NATIVE.format(level="F")
    + r"^(?P<libc>(?:free|malloc|realloc|munmap_chunk)\(\): .+|double free or corruption.*|"
    r"corrupted .+|\*\*\* (?!Check failure stack).+ \*\*\*.*|.*: Assertion `.*' failed\.?|"
    r"LLVM ERROR: .+|terminate called .+|(?:FATAL|CRITICAL):.+)$"
)


def abort_of(lines: Sequence[str]) -> str:
    """Return the message that a library printed before it aborted, or an empty string."""
    texts: List[Tuple[str, ...]] = []
    for line in lines:
        found = _ABORTS.match(line)
        if found:
            texts.append(tuple(filter(None, found.groups())))
    return bounded(texts[-1][0]) if texts else ""


def stack_of(lines: Sequence[str]) -> List[str]:
    """Return faulthandler's output about the thread that received a fatal signal."""
    begin = max(
        (n for n, line in enumerate(lines) if line.startswith(log_shapes.FATAL)), default=None
    )
    if begin is None:
        return []
    for number in range(begin, len(lines)):
        if lines[number].startswith(log_shapes.CURRENT_THREAD):
            end = number + 1
            while end < len(lines) and lines[end].startswith("  "):
                end += 1
            return [lines[begin], *lines[number:end]]
    return [lines[begin]]
