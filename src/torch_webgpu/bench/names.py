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
PLAN = "compiled plan"  #: a plan of n launches replayed, one wait

# Metrics.
WALL = "wall"  #: until everything is waited for
HOST = "host"  #: until the calls return
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
PART = "part"  #: of `bench overhead`: µs of a dispatch that one layer takes; the method is the layer

# Methods of `bench dispatch` that time something else than n dispatches until all are done.
PHASES = "phases"  #: the calls of one submit one by one; the metric names the call
PHASE_ORDER = (
    "encoder", "begin pass", "set pipeline", "set bind group", "dispatch", "end pass", "finish", "submit", "release"
)  # fmt: skip

# Layers of `bench overhead`, from the hardware up.
LAYERS = ("GPU", "driver", "API", "framework", "Python")
