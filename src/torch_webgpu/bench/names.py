"""Names that what measures and what reports must agree on: a name that matters is written here and nowhere else."""

from __future__ import annotations

INCREMENT = "increment"  #: the kernel of `bench dispatch`: adds one to every word of a buffer

# Methods of `bench dispatch`; each runs the same kernel n times.
WAITED = "single-op waited"  #: one dispatch and a wait, n times: what a naive benchmark does
READ_BACK = "single-op read back"  #: one dispatch whose result is read, n times
UNWAITED = "single-op unwaited"  #: one dispatch timed until the call returns, n times
SEQUENTIAL = "sequential"  #: n submits of one dispatch, one wait
PASSES = "passes in one submit"  #: n passes of one dispatch, one submit, one wait
ONE_PASS = "one pass"  #: n dispatches in one pass, one submit, one wait
EAGER = "torch eager op"  #: n calls of a torch op, one wait
IDLE_WAIT = "wait of an idle queue"  #: no dispatch at all: the floor that is in every wait; browsers poll
PLAN = "compiled plan"  #: a plan of n launches replayed, one wait

# How the dispatches of a call of `bench fusion` go to the queue.
TOGETHER, APART = "one a call", "one a dispatch"

# Metrics.
WALL = "wall"  #: until everything is waited for
HOST = "host"  #: until the calls return
SUBMITTED = "submitted"  #: until all is encoded and handed to the queue
GPU = "gpu"  #: by the GPU's timestamps
RATE = "rate"  #: tokens a second, decoding
TTFT = "ttft"  #: until the first token
TOKEN = "token"  #: of each further token
MEMORY = "memory"  #: the device's, at its peak
ENERGY = "energy"  #: J for each token, above idle
POWER = "power"  #: W while working
IDLE = "idle power"  #: W before the work
DISPATCHES = "dispatches"  #: encoded for one call
SUBMITS = "submits"  #: of one call
BIND_GROUPS = "bind groups"  #: made for one call; the rest were there
WEIGHTS = "weights"  #: bytes of a model's parameters and buffers
LOADED = "memory loaded"  #: the device's, with nothing but the model in it
STREAMED = "streamed rate"  #: tokens a second that a stream hands to the host, the prompt included
PROMPT_READY = "prompt ready"  #: until the first prompt is compiled and done
STEP_READY = "step ready"  #: then until the first step is
LAUNCH = "launch"  #: of one kind of a plan's launches

# Methods of `bench dispatch` that time something else than n dispatches until all are done.
PHASES = "phases"  #: the calls of one submit one by one; the metric names the call
PHASE_ORDER = (
    "encoder", "begin pass", "set pipeline", "set bind group", "dispatch", "end pass", "finish", "submit", "release"
)  # fmt: skip

# Methods of `bench overhead`; n is of tensor ops or of decode steps.
CALLS_ALONE = "calls alone"  #: a C++ loop that makes the calls to the library that n would make, in one pass
FROM_CPP = "from C++"  #: n without Python between them
FROM_PYTHON = "from Python"  #: n, each by its Python call
OVERLAPPED = "overlapped"  #: n from Python, so many that recording, encoding and the GPU's work go on at once
CUDA_GRAPH = "CUDA graph"  #: n by replaying what was captured
STAGES = "stages of the core"  #: what the C++ core spends its part on; the metric names the stage
STAGE_ORDER = ("key", "output", "record", "stack")
DECODE_STEP = "decode step"  #: workload, with the model's name after a comma

# Layers that `bench overhead` finds, from the hardware up; some cannot be told apart everywhere.
DEVICE, QUEUE, DEVICE_AND_QUEUE = "GPU", "queue", "GPU and queue"
DRIVER, API, API_AND_DRIVER = "driver", "API", "API and driver"
CPP, PYTHON, CPP_AND_PYTHON = "C++", "Python", "C++ and Python"
CPP_AND_DRIVER = "C++ and driver"  #: PyTorch's dispatcher and the launch, of devices whose API is not called apart
