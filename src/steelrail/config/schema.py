"""The run file: one closed, frozen schema. Every setting has bounds, a unit and one sentence.

``config/README.md`` and ``config/schema.json`` are made from this file (``steelrail.config.docs``).
Placement (``slurm``, ``shape``, ``node``, ``store``, ``launch``, ``checkpoints``) never enters the training key;
``train`` does, field by field (``steelrail.config.keys``).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

NAME = r"^[a-z0-9][a-z0-9-]{0,39}$"
SLURM_WORD = r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$"
ONE_LINE = r"^[^\r\n\x00]*$"
ENV_NAME = r"^[A-Z][A-Z0-9_]{0,63}$"
# What separates mounts and their parts cannot stand in a path; both runtimes know no quoting.
MOUNT = r"^/[^,:\r\n\x00]*(:/[^,:\r\n\x00]*(:(ro|rw))?)?$"
SECRET_NAME = re.compile(r"(^|_)(SECRET|PASSWORD|PASSWD|TOKEN|API_KEY|SECRET_ACCESS_KEY|ACCESS_KEY_ID)$")
PASSWORD_IN_URL = re.compile(r"://[^/\s@]*:[^/\s]*@")

SlurmWord = Annotated[str, Field(pattern=SLURM_WORD)]
Line = Annotated[str, Field(pattern=ONE_LINE, max_length=1000)]
PathText = Annotated[str, Field(pattern=ONE_LINE, min_length=1, max_length=1000)]

Category = Literal[
    "productive",
    "replayed",
    "checkpoint",
    "restore",
    "staging",
    "fabric_check",
    "startup",
    "communication",
    "data_wait",
    "preprocessing",
    "idle",
    "lost",
    "unattributed",
]


class Section(BaseModel):
    """Base of every section: frozen, closed, no guessing of types; a number is one, neither infinite nor none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _no_password_in_a_url(self) -> Self:
        # Every value of the run file is recorded, logged and shown.
        for name, value in self:
            texts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
            if any(isinstance(text, str) and PASSWORD_IN_URL.search(text) for text in texts):
                raise ValueError(f"{name} must be without a password, is a URL with one: use ~/.aws/credentials")
        return self


class Corpus(Section):
    """What text goes in."""

    paths: tuple[PathText, ...] = Field(
        min_length=1, description="Parquet files: local paths, globs, or s3://bucket/prefix (every .parquet below it)."
    )
    text_column: Line = Field(default="text", min_length=1, description="Name of the column that holds the text.")
    max_objects: int = Field(default=100_000, ge=1, le=10_000_000, description="Refuse a listing with more objects.")


class Shards(Section):
    """How text becomes tokens on NVMe."""

    parts: int = Field(default=4, ge=1, le=10_000, description="Number of Slurm jobs the work is scattered over.")
    tokenizer: PathText = Field(description="Tokenizer file: a Hugging Face tokenizer.json or a tiktoken ranks file.")
    tokenizer_format: Literal["huggingface", "tiktoken-cl100k", "tiktoken-llama3"] = Field(
        default="huggingface", description="What the tokenizer file is, with the splitting rule that belongs to it."
    )
    end_of_text: Line = Field(
        default="<|end_of_text|>",
        min_length=1,
        description="Control token put after every document; in text it stays text.",
    )
    heldout_per_million: int = Field(
        default=20_000,
        ge=0,
        le=500_000,
        description="Documents per million, chosen by hash, kept for the held-out loss.",
    )
    max_document_bytes: int = Field(
        default=64_000_000,
        ge=1,
        le=2_000_000_000,
        description="Bytes of UTF-8 above which a document is dropped and counted.",
    )
    max_dropped_share: float = Field(
        default=0.05, ge=0.0, le=1.0, description="Share of rows dropped above which the stage stops."
    )
    shard_tokens: int = Field(
        default=64_000_000,
        ge=1_000,
        le=1_000_000_000,
        description="Tokens per data shard file, at most (one document may exceed it).",
    )
    partition: SlurmWord = Field(default="cpu", description="Slurm partition of the shard jobs (a CPU partition).")
    cpus: int = Field(default=1, ge=1, le=1024, description="CPUs per shard job.")
    memory_mb: int = Field(default=1500, ge=256, le=1_000_000, description="Memory per shard job, in MB.")
    minutes: int = Field(default=60, ge=1, le=43_200, description="Time limit per shard job, in minutes.")


class Shape(Section):
    """Which GPUs, and how they are linked."""

    nodes: int = Field(ge=1, le=4096, description="Number of whole nodes.")
    gpus_per_node: int = Field(ge=0, le=64, description="GPUs per node that are paid for (0: a CPU partition).")
    ranks_per_node: int = Field(ge=1, le=64, description="Processes per node that train (usually one per GPU).")
    device: Literal["cuda", "cpu"] = Field(default="cuda", description="What the ranks compute on.")
    gpu: Literal["h100-sxm", "h200-sxm", "cpu"] = Field(
        default="h100-sxm", description="Model of the GPU: its peak FLOP/s and memory stand in the plan."
    )
    rack: Literal["required", "preferred", "any"] = Field(
        default="preferred", description="One leaf switch for all nodes: refuse a downgrade, record it, or do not ask."
    )
    rack_wait_minutes: int = Field(
        default=60, ge=0, le=43_200, description="Minutes Slurm may wait for one leaf switch before it gives up."
    )
    nvlink_gb_per_s: float = Field(default=450.0, gt=0, le=10_000, description="NVLink GB/s per GPU, one direction.")
    rails: int = Field(default=8, ge=1, le=64, description="Network ports per node.")
    rail_gbit_per_s: float = Field(default=400.0, gt=0, le=3_200, description="Gbit/s of each port.")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def num_gpus(self) -> int:
        """GPUs paid for."""
        return self.nodes * self.gpus_per_node

    @model_validator(mode="after")
    def _ranks_fit(self) -> Shape:
        if self.device == "cuda" and self.ranks_per_node > self.gpus_per_node:
            raise ValueError(
                f"ranks_per_node must be at most gpus_per_node ({self.gpus_per_node}), "
                f"is {self.ranks_per_node}: lower it"
            )
        return self


class Container(Section):
    """The image in which the ranks of the fabric and train jobs run; head and supervisor stay outside."""

    runtime: Literal["pyxis", "apptainer"] = Field(
        description="What starts it: pyxis, by options of srun, or apptainer, before each rank's command."
    )
    image: Annotated[str, Field(pattern=r"^[^\s\x00-][^\r\n\x00]{0,999}$")] = Field(
        description="Image, as the runtime names it: nvcr.io#nvidia/pytorch:25.10-py3 or a .sqsh file (pyxis), a .sif "
        "file (apptainer)."
    )
    python: PathText = Field(
        default="python3",
        description="Python inside, with the packages that Steelrail needs (its own code is mounted).",
    )
    mounts: tuple[Annotated[str, Field(pattern=MOUNT, max_length=1000)], ...] = Field(
        default=(),
        description="Mounts beside what the ranks need: /path, /outside:/inside or /outside:/inside:ro.",
    )


class Slurm(Section):
    """What is asked of Slurm for the fabric and train jobs."""

    executor: Literal["slurm", "local"] = Field(
        default="slurm", description="Where jobs run: Slurm, or processes on this host."
    )
    partition: SlurmWord = Field(default="gpu", description="Partition of the GPU nodes.")
    account: SlurmWord | None = Field(default=None, description="Account that is charged.")
    qos: SlurmWord | None = Field(default=None, description="Quality of service.")
    reservation: SlurmWord | None = Field(default=None, description="Reservation to run in.")
    constraint: Annotated[str, Field(pattern=r"^[A-Za-z0-9._&|*\[\](),-]{1,200}$")] | None = Field(
        default=None, description="Node features asked for, in Slurm's syntax."
    )
    gres: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_:.-]{0,63}$")] = Field(
        default="gpu", description="Name (and type) of the GPU resource, such as gpu or gpu:h100."
    )
    minutes: int = Field(
        default=1440, ge=1, le=525_600, description="Time limit of one segment of the training job, in minutes."
    )
    fabric_minutes: int = Field(default=30, ge=1, le=1440, description="Time limit of the fabric job, in minutes.")
    lead_seconds: int = Field(
        default=300, ge=30, le=7_200, description="Seconds before the time limit at which ranks are told to save."
    )
    cpus_per_rank: int = Field(default=8, ge=1, le=1024, description="CPUs per rank.")
    exclude: tuple[SlurmWord, ...] = Field(default=(), description="Nodes never to use.")
    spare_nodes: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Nodes held, and paid for, beside those that train: one takes a lost or unfit node's place without "
        "the job going back to the queue.",
    )
    mail_user: Annotated[str, Field(pattern=r"^[A-Za-z0-9._%+@-]{3,200}$")] | None = Field(
        default=None, description="Address that Slurm mails."
    )
    mail_type: tuple[Literal["BEGIN", "END", "FAIL", "REQUEUE", "ALL"], ...] = Field(
        default=(), description="Events that Slurm mails."
    )
    setup: tuple[Line, ...] = Field(
        default=(),
        description="Shell lines run before the job's Python starts (module loads); they are code, used as written.",
    )
    container: Container | None = Field(default=None, description="Image in which the ranks run (none: bare).")
    environment: dict[Annotated[str, Field(pattern=ENV_NAME)], Line] = Field(
        default={}, description="Environment variables of the ranks (NCCL_*, GLOO_*); recorded, so never a secret."
    )

    @model_validator(mode="after")
    def _no_secret(self) -> Slurm:
        names = ", ".join(sorted(name for name in self.environment if SECRET_NAME.search(name)))
        if names:
            raise ValueError(f"environment must be without secrets, is with {names}: use ~/.aws/credentials or a file")
        return self

    @model_validator(mode="after")
    def _in_slurm_alone(self) -> Slurm:
        if self.container is not None and self.executor == "local":
            raise ValueError("container must be left out with executor: local, is given: remove it, or use slurm")
        if self.spare_nodes and self.executor == "local":
            raise ValueError(f"spare_nodes must be 0 with executor: local, is {self.spare_nodes}: remove it")
        return self


class Node(Section):
    """What a node must offer."""

    nvme: PathText = Field(default="/mnt/fastssd", description="Folder on the node's local NVMe, writable by the user.")
    min_free_gb: float = Field(default=1.0, ge=0.0, le=1_000_000, description="Free space needed there, in GB.")
    max_clock_skew_seconds: float = Field(
        default=2.0, gt=0.0, le=3600.0, description="Largest difference between a node's clock and the first node's."
    )


class Store(Section):
    """The S3 store that outlives nodes. Credentials come from boto3's chain, never from here."""

    endpoint: Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.:\[\]-]+$")] | None = Field(
        default=None, description="URL of the S3 endpoint (none: AWS)."
    )
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")] = Field(default="us-east-1", description="Region.")
    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] = Field(description="Bucket.")
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$")] = Field(
        default="steelrail", description="Key prefix for everything that Steelrail writes."
    )
    profile: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] | None = Field(
        default=None, description="Profile of the AWS credentials file (none: boto3's own choice)."
    )
    allow_http: bool = Field(default=False, description="Allow an http:// endpoint that is not loopback.")
    timeout_seconds: float = Field(default=10.0, gt=0, le=600, description="Connect and read time-out of one request.")
    retry_seconds: float = Field(
        default=120.0, ge=0, le=86_400, description="Seconds during which a failing call is repeated."
    )

    @model_validator(mode="after")
    def _prefix_leads_nowhere_else(self) -> Store:
        # S3 keeps such a key as it is written; clients and gateways between walk it like a path.
        if {".", ".."} & set(self.prefix.split("/")):
            raise ValueError(f"prefix must be without . and .. as parts, is {self.prefix}: remove them")
        return self

    @model_validator(mode="after")
    def _http_is_meant(self) -> Store:
        host = (self.endpoint or "").removeprefix("http://").split(":")[0]
        if (
            (self.endpoint or "").startswith("http://")
            and not self.allow_http
            and host not in ("127.0.0.1", "localhost")
        ):
            raise ValueError(f"endpoint must be https://, is {self.endpoint}: use https, or set store.allow_http: true")
        return self


class Fabric(Section):
    """How the links are judged."""

    repeats: int = Field(default=20, ge=3, le=10_000, description="Timed repeats of each measurement.")
    pair_bytes: int = Field(
        default=4_000_000, ge=1_000, le=4_000_000_000, description="Bytes exchanged by each pair of nodes."
    )
    matrix_size: int = Field(
        default=512, ge=64, le=32_768, description="Side of the square matrices multiplied on each GPU."
    )
    slow_ratio: float = Field(
        default=0.5,
        gt=0.0,
        lt=1.0,
        description="A link or GPU is unfit below this share of the median of its kind (on the CPU, whose cores ranks "
        "share, a link is below half of this, and a core is only warned of).",
    )
    max_jitter: float = Field(
        default=50.0,
        ge=1.0,
        le=10_000.0,
        description="Largest p99/p50 of the whole-world all-gather before a warning becomes a refusal.",
    )
    quick_seconds: float = Field(
        default=10.0, gt=0, le=600, description="Time budget of the check inside every training attempt."
    )
    valid_hours: float = Field(default=168.0, gt=0, le=8760.0, description="Hours during which the receipt counts.")


class RopeScaling(Section):
    """Llama 3.1's frequency scaling of RoPE."""

    factor: float = Field(ge=1.0, le=1024.0, description="Factor by which long wavelengths are stretched.")
    low_frequency_factor: float = Field(
        default=1.0, gt=0, le=1024.0, description="Lower bound, in original contexts per wavelength."
    )
    high_frequency_factor: float = Field(
        default=4.0, gt=0, le=1024.0, description="Upper bound, in original contexts per wavelength."
    )
    original_positions: int = Field(
        default=8192, ge=1, le=10_000_000, description="Context the weights were first trained on."
    )


class Model(Section):
    """Shape of a Llama-3 model."""

    dim: int = Field(ge=8, le=65_536, description="Width of the residual stream.")
    num_layers: int = Field(ge=1, le=1024, description="Transformer blocks.")
    num_heads: int = Field(ge=1, le=1024, description="Query heads.")
    num_kv_heads: int = Field(ge=1, le=1024, description="Key and value heads (grouped-query attention).")
    ffn_dim: int = Field(ge=8, le=1_000_000, description="Width of the SwiGLU feed-forward layer.")
    vocab_size: int = Field(ge=2, le=10_000_000, description="Rows of the embedding.")
    norm_eps: float = Field(default=1e-5, gt=0, lt=1, description="Epsilon of RMSNorm.")
    rope_theta: float = Field(default=500_000.0, gt=0, description="Base of RoPE.")
    rope_scaling: RopeScaling | None = Field(default=None, description="Llama 3.1's scaling (none: plain RoPE).")
    tied_embeddings: bool = Field(default=False, description="Output head shares the embedding's weights.")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.num_heads

    @model_validator(mode="after")
    def _heads_divide(self) -> Model:
        if self.dim % self.num_heads or self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise ValueError(
                f"dim / num_heads must be even and num_heads a multiple of num_kv_heads, "
                f"is {self.dim} / {self.num_heads} with {self.num_kv_heads} kv heads: change them"
            )
        return self


class Optimizer(Section):
    """AdamW with a cosine schedule."""

    learning_rate: float = Field(gt=0, le=1, description="Peak learning rate.")
    final_ratio: float = Field(default=0.1, ge=0, le=1, description="Learning rate at the last step over the peak.")
    warmup_steps: int = Field(default=0, ge=0, le=10_000_000, description="Steps of linear warm-up.")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="Decay of the second moment.")
    eps: float = Field(default=1e-8, gt=0, lt=1, description="Epsilon of AdamW.")
    weight_decay: float = Field(default=0.1, ge=0, le=10, description="Decoupled weight decay (matrices only).")
    clip_norm: float = Field(default=1.0, gt=0, le=1e9, description="Largest norm of the whole gradient.")


class BadStep(Section):
    """What follows a step whose loss or gradient is not finite, or whose loss is a spike."""

    policy: Literal["stop", "skip", "roll_back"] = Field(
        default="stop",
        description="Stop the run; or leave that step's update out and go on; or resume from before it and leave out "
        "the updates that led to it (skip and roll_back: another training key).",
    )
    spike_factor: float | None = Field(
        default=None, gt=1, le=1e6, description="A loss above this many medians of the last ones is bad (none: never)."
    )
    spike_window: int = Field(
        default=32,
        ge=1,
        le=1000,
        description="Losses of good steps in that median; before there are as many, no spike.",
    )
    limit: int = Field(
        default=10,
        ge=1,
        le=10_000,
        description="Steps left out (skip), or times rolled back (roll_back), in the whole run, before it stops.",
    )
    back_steps: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Good steps before the bad one that roll_back makes again at least (0: the newest checkpoint). "
        "Checkpoints that this may need, as often as limit says, are kept in the store.",
    )
    leave_out_steps: int = Field(
        default=1,
        ge=1,
        le=1_000_001,
        description="Steps whose updates roll_back leaves out: the bad one and those before it, at most back_steps.",
    )

    @model_validator(mode="after")
    def _window(self) -> Self:
        if self.policy != "roll_back" and (self.back_steps, self.leave_out_steps) != (0, 1):
            raise ValueError("back_steps and leave_out_steps must be left unset, or policy be roll_back")
        if self.leave_out_steps > self.back_steps + 1:
            raise ValueError(
                f"leave_out_steps must be at most back_steps + 1 = {self.back_steps + 1}, "
                f"is {self.leave_out_steps}: what lies in the checkpoint cannot be left out; raise back_steps"
            )
        return self


class Train(Section):
    """Everything that changes the mathematics of training."""

    model: Model = Field(description="Shape of the model.")
    optimizer: Optimizer = Field(description="Optimizer and schedule.")
    steps: int = Field(ge=1, le=1_000_000_000, description="Optimizer steps of the whole run.")
    sequence_tokens: int = Field(default=8192, ge=8, le=10_000_000, description="Tokens per sequence.")
    global_batch_sequences: int = Field(ge=1, le=10_000_000, description="Sequences per step over all ranks.")
    micro_batch_sequences: int = Field(
        default=1, ge=1, le=100_000, description="Sequences per forward on one rank (placement)."
    )
    precision: Literal["bf16", "fp32"] = Field(
        default="bf16", description="Compute precision; master weights stay fp32."
    )
    seed: int = Field(default=1, ge=0, le=2**63 - 1, description="Seed of initial weights and of the order of data.")
    recompute: bool = Field(
        default=False, description="Make activations again in the backward pass, to save memory (placement)."
    )
    deterministic: bool = Field(
        default=True, description="Freeze kernels and orders, so that a rerun is equal to the last bit."
    )
    init_from: PathText | None = Field(
        default=None, description="Hugging Face folder of safetensors to start from (none: random)."
    )
    heldout_every_steps: int = Field(default=100, ge=1, le=10_000_000, description="Steps between held-out losses.")
    heldout_sequences: int = Field(
        default=64, ge=0, le=10_000_000, description="Sequences of each held-out loss (0: none)."
    )
    bad_step: BadStep = Field(default=BadStep(), description="What follows a bad step.")
    export: bool = Field(default=True, description="Write the final weights as Hugging Face safetensors.")


class Checkpoints(Section):
    """When state is saved, and what is kept."""

    every_steps: int = Field(default=500, ge=1, le=10_000_000, description="Steps between checkpoints, at most.")
    interval: Literal["fixed", "auto"] = Field(
        default="fixed",
        description="Save at every_steps alone, or oftener where the measured stall and the failures seen say so "
        "(auto: Young/Daly).",
    )
    min_seconds: float = Field(
        default=60.0, ge=1, le=86_400, description="Least seconds between two saves that auto asks for."
    )
    keep_last: int = Field(default=3, ge=1, le=1000, description="Newest durable checkpoints kept in the store.")
    keep_every_steps: int = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="Keep for good the first checkpoint at or after each multiple of so many steps (0: none).",
    )
    keep_best: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Keep so many of lowest held-out loss, of those saved at a step where it was measured (0: none).",
    )
    buddy: bool = Field(
        default=True,
        description="Keep a second copy of each node's part on the NVMe of the node after it (from two nodes on; takes "
        "as much room there again).",
    )
    max_behind: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="Saves that may wait on NVMe while the store is away, before the run stops.",
    )


class Launch(Section):
    """How endings are answered. Progress means that the newest durable checkpoint advanced."""

    restarts_in_allocation: int = Field(
        default=2, ge=0, le=100, description="Restarts inside the allocation without progress, before a requeue."
    )
    requeues_without_progress: int = Field(
        default=1, ge=0, le=100, description="Requeues without progress, before the run stops."
    )
    same_error_limit: int = Field(
        default=3, ge=1, le=100, description="Equal errors at one step, before the run stops."
    )
    standby: bool | None = Field(
        default=None,
        description="Keep the next attempt loaded on every node while one trains, so that a restart in the allocation "
        "need not load torch (none: where ranks train on GPUs).",
    )
    hang_seconds: float = Field(
        default=60.0,
        ge=5,
        le=86_400,
        description="Seconds without a heartbeat of a rank (at least), before it counts as hung.",
    )
    startup_seconds: float = Field(
        default=600.0, ge=10, le=86_400, description="Seconds a rank may take to its first step."
    )
    requeue_delay_seconds: int = Field(
        default=12, ge=1, le=3600, description="Seconds until a requeued job may start, where its owner may set it."
    )
    poll_seconds: float = Field(
        default=2.0, gt=0, le=600, description="Seconds between looks at the job from the head node."
    )


class Cost(Section):
    """What things cost."""

    price_book: PathText = Field(default="config/prices", description="Folder of dated price books.")
    provider: Line = Field(default="runpod", description="Provider that is paid.")
    sku: Line = Field(default="h100-sxm-secure", description="What is rented there, as the price book names it.")
    store_service: Line | None = Field(
        default=None,
        min_length=1,
        description="What the store is in the price book, such as aws-s3-standard (none: that without an endpoint, "
        "else not known).",
    )
    cpu_usd_per_hour: Annotated[str, Field(pattern=r"^\d{1,6}(\.\d{1,6})?$")] = Field(
        default="0.04", description="Dollars per CPU-hour of a partition without GPUs (a quoted decimal)."
    )
    max_age_days: int = Field(
        default=90, ge=1, le=36_500, description="Age of a price row above which it is marked stale."
    )
    allow_stale: bool = Field(default=True, description="Show stale rows, marked; false refuses them.")
    budget_usd: Annotated[str, Field(pattern=r"^\d{1,12}(\.\d{1,6})?$")] | None = Field(
        default=None, description="Dollars at which the run saves and stops (a quoted decimal; none: no limit)."
    )


class Drill(Section):
    """A wait or fault put in on purpose, to see that it is noticed, survived and billed. Never in a key."""

    kind: Literal["wait", "raise", "exit", "hang", "nan"] = Field(
        description="What happens (nan: loss and gradient of the step become not a number)."
    )
    where: Category = Field(default="productive", description="During which category of time it happens.")
    seconds: float = Field(default=0.0, ge=0, le=3600, description="Length of a wait, in seconds.")
    at_step: int = Field(default=0, ge=0, description="Step at which it happens (categories of the loop only).")
    rank: int = Field(default=0, ge=-1, description="Rank to which it happens (-1: every rank).")
    attempt: int = Field(default=1, ge=0, description="Attempt in which it happens (0: every attempt).")

    @model_validator(mode="after")
    def _nan_in_a_step(self) -> Drill:
        if self.kind == "nan" and self.where != "productive":
            raise ValueError(f"where must be productive for a nan drill, is {self.where}: leave it out")
        return self


class Run(Section):
    """One run: the whole run file."""

    name: Annotated[str, Field(pattern=NAME)] = Field(
        description="Name of the run: results/<name>/ and the Slurm job's name."
    )
    results: PathText = Field(default="results", description="Folder of results, on a file system that nodes share.")
    corpus: Corpus = Field(description="What text goes in.")
    shards: Shards = Field(description="How text becomes tokens.")
    shape: Shape = Field(description="Which nodes and GPUs.")
    slurm: Slurm = Field(default=Slurm(), description="What is asked of Slurm.")
    node: Node = Field(default=Node(), description="What a node must offer.")
    store: Store = Field(description="The S3 store.")
    fabric: Fabric = Field(default=Fabric(), description="How links are judged.")
    train: Train = Field(description="Model and mathematics.")
    checkpoints: Checkpoints = Field(default=Checkpoints(), description="When state is saved.")
    launch: Launch = Field(default=Launch(), description="How endings are answered.")
    cost: Cost = Field(default=Cost(), description="Prices and budget.")
    drills: tuple[Drill, ...] = Field(default=(), description="Faults put in on purpose (none in a real run).")

    @property
    def held_nodes(self) -> int:
        """Nodes of the training job: those that train, and the spares."""
        return self.shape.nodes + self.slurm.spare_nodes

    @property
    def held_gpus(self) -> int:
        """GPUs of the training job, which all are paid for."""
        return self.held_nodes * self.shape.gpus_per_node

    @model_validator(mode="after")
    def _batch_divides(self) -> Run:
        group = self.shape.world_size * self.train.micro_batch_sequences
        if self.train.global_batch_sequences % group:
            raise ValueError(
                f"train.global_batch_sequences must be a multiple of ranks x micro_batch_sequences ({group}), "
                f"is {self.train.global_batch_sequences}: change one of them"
            )
        return self

    @model_validator(mode="after")
    def _best_is_measured(self) -> Run:
        if self.checkpoints.keep_best and not self.train.heldout_sequences:
            raise ValueError(
                f"checkpoints.keep_best must be 0 where no held-out loss is measured, is {self.checkpoints.keep_best}: "
                "set it to 0, or raise train.heldout_sequences"
            )
        return self
