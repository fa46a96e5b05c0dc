"""Environment variables of a rank's process: their names, and the values that are fixed."""

from __future__ import annotations

ENV_JOB = "TRAIN_JOB"
ENV_RANK_DIR = "TRAIN_RANK_DIR"
ENV_PROGRESS = "TRAIN_PROGRESS_FILE"
ENV_MODEL_DIR = "TRAIN_MODEL_DIR"
ENV_CHECKPOINT_DIR = "TRAIN_CHECKPOINT_DIR"
ENV_TENSORBOARD_DIR = "TRAIN_TENSORBOARD_DIR"
ENV_SEED = "TRAIN_SEED"
ENV_START_TIMEOUT = "TRAIN_START_TIMEOUT"
ENV_ATTEMPT = "TRAIN_ATTEMPT"
ENV_CHECKPOINT_COPY = "TRAIN_CHECKPOINT_COPY"
ENV_RANK = "TRAIN_RANK"
ENV_WORLD_SIZE = "TRAIN_WORLD_SIZE"
ENV_HOSTS = "TRAIN_HOSTS"

#: All of them; they are expanded in arguments of the script.
OWN_VARIABLES = frozenset(
    (
        *(ENV_JOB, ENV_RANK_DIR, ENV_PROGRESS, ENV_MODEL_DIR, ENV_CHECKPOINT_DIR),
        *(ENV_TENSORBOARD_DIR, ENV_SEED, ENV_START_TIMEOUT, ENV_ATTEMPT, ENV_CHECKPOINT_COPY),
        *(ENV_RANK, ENV_WORLD_SIZE, ENV_HOSTS),
    )
)

#: The variable from which TensorFlow reads gRPC's options, and its value for a rank. It disables
#: web proxies, through which gRPC would send the ranks' messages and hang. Connections to a peer
#: that is not up yet are tried again after 0.1 s, then at most every 0.3 s (by default after 1 s,
#: increasing).
ENV_GRPC = "TF_GRPC_DEFAULT_OPTIONS"
GRPC_OPTIONS = (
    "grpc.enable_http_proxy=0,"
    "grpc.initial_reconnect_backoff_ms=100,"
    "grpc.max_reconnect_backoff_ms=300"
)

#: The variable from which glibc (2.35 or newer) reads its allocator's options, and its value for a
#: rank. By default, memory that a step frees is returned to the kernel, and the next step gets it
#: back page by page, which takes up to half of a step's time on CPUs. The value enables huge pages
#: if the kernel provides them on request, and keeps freed memory in the process. It limits the
#: number of arenas to two, because each arena keeps its own memory.
ENV_MALLOC = "GLIBC_TUNABLES"
MALLOC_OPTIONS = (
    "glibc.malloc.hugetlb=1:"
    "glibc.malloc.arena_max=2:"
    "glibc.malloc.top_pad=67108864:"
    "glibc.malloc.mmap_threshold=1073741824:"
    "glibc.malloc.trim_threshold=1073741824"
)
