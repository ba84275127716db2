"""Why options are refused: one reason for each missing feature, with what to use instead."""

from __future__ import annotations

REPOSITORY_CODE = "a class that this build lacks comes from the model's repository: `model.trust_remote_code`"
GENERATION_ONLY = "this build generates text; it computes no embeddings, scores or rewards"
TEXT_ONLY = "this build serves text; it reads no images, audio or video"
NO_PROMPT_TENSORS = "prompts are text, messages or token ids; tensors are not accepted"
SLEEPING_MEMORY = (
    "with `model.enable_sleep_mode` weights and caches of a GPU are in memory that is freed and taken again at the "
    "same addresses (level 1); graphs and NCCL keep theirs until the process ends (level 2)"
)
ATTENTION_DTYPE = "attention has queries and results in `model.dtype`, and accumulates in float32; set `model.dtype`"
NO_IO_PLUGINS = "there are no such plugins; requests and responses have the format of the OpenAI API"
NO_STATE_SPACE = (
    "recurrent states have one layout in this build; `cache.mamba_ssm_cache_dtype` is the number format of their sums"
)
WHOLE_LAYERS = (
    "`cache.cpu_offload_gb` says how much is kept in host memory: whole layers, spread evenly, copied in advance"
)
SLOTS_AS_NEEDED = "the scheduler reserves the slots that a step needs"
ONE_KV_LAYOUT = "the cache of each layer follows from the model; all of them have `cache.kv_cache_dtype`"
SAME_TOKENS = (
    "the processes of `parallel.tensor_parallel_size` compute the same tokens; those of "
    "`parallel.prefill_context_parallel_size` share them, in all layers"
)
PARTS_OF_ATTENTION = (
    "processes read the results of attention of the others in the memory that they share, or gather them through Gloo"
)
GATHERED_QUERIES = "each process computes the queries of its own heads, and gathers those of the others"
LAUNCHED_EXCHANGES = (
    "exchanges of GPUs are launched with their step and have no limit of their own: a process that ends or stops ends "
    "the engine, and /livez reports a step that does not end"
)
ONE_SAMPLER = "one process samples for the whole batch"
ONE_LOG_LINE = "the line of statistics in the log is of all replicas; /metrics has them by replica"
AGREED = (
    "replicas that share experts agree before every step, through the memory that they share; other replicas compute "
    "independently of each other"
)
RESTARTED = "a replica that fails is started again, and the others serve meanwhile: `server.on_engine_death`"
SUPERVISED = (
    "systemd, Kubernetes and Docker Compose supervise servers; write one unit for each replica, "
    "`engine up FILE --data-parallel-rank R --port P`"
)
FIXED_EXPERTS = "the number of processes is that of the start: experts move between these (`parallel.enable_eplb`)"
GATHERED_TOKENS = (
    "replicas that share experts gather the tokens of all and return sums, through shared memory; the processes of one "
    "replica have the same tokens"
)
OWN_EXPERTS = "each process reads its own experts alone"
NO_DEVICE_SETTINGS = "devices have no settings besides the options of this section"
ADAPTER_BY_FOLDER = "adapters are folders that PEFT has written: `lora.modules`"
WHOLE_A = "each device has matrix A of an adapter whole, and the rows of matrix B of its own outputs"
ANY_ADAPTERS = "a captured step serves any number of adapters: their number is one of its arguments"
LAYOUT_READ = "names and shapes of the tensors say how an adapter stores experts; no option is needed"
NO_PROMPT_ADAPTERS = "this build reads no prompt adapters; put the prompt's text into the request"
REASONING_IN_FORMAT = "the markers of reasoning are part of the format: declare one in `server.tool_parser_plugin`"
DRAFTS_AS_MODEL = "what drafts is quantised as `model.quantization` says"
DRAFTS_LIKE_MODEL = "what drafts is loaded and computed as the model is"
DRAFTS_ALONE = "what drafts is computed by one process"
DRAFT_MODEL_OF_OLLAMA = "name the draft model in `speculative.model`"
BLOCKS_HAVE_NAMES = "blocks are found by their hashes, and engines by their addresses: `kv_transfer.kv_ip`"
TRACE_NAME = "set the environment variable OTEL_SERVICE_NAME"
STRICT_TOOLS = (
    "calls obey the schemas of tools with `strict: true`, and of all tools where the request requires a call: a tool "
    "says so itself"
)
ONE_QUANTISATION = "`model.quantization` selects one quantisation for all layers, computed while loading"
NO_DIFFUSION = "this build runs no diffusion language models; it generates token by token"
NO_ENGRAM = "no model that this build runs has n-gram embeddings"
ONE_RENDERER = "the tokenizer has threads of its own, and chat templates have processes"
NO_OTHER_RESULTS = "a response has text, token ids and log-probabilities; there are no other results"
NO_REPLAY = "`prompt_logprobs` scores a given text without generating it"
SAMPLING_NOISE = "noise of sampling is computed in float32 from a hash of seed and position"
NO_WATERMARK = "generated text carries no watermark"
READ_ON_DEMAND = "set `load.safetensors_load_strategy: eager` for network file systems"
NO_TRAINING = "weights do not change while the server runs; start it again with the new checkpoint"
WHOLE_BLOCKS = "a shared prefix ends at the end of a block; choose a smaller `cache.block_size`"
WHOLE_PROMPT_FITS = "a request is always admitted only when there are blocks for its whole prompt"
GPU_BY_VARIABLE = "the first GPUs are used, in order; select them with the environment variable CUDA_VISIBLE_DEVICES"
OWN_KERNELS = "kernels are chosen by the device; `engine plan` names them and the reasons"
NO_MODES = "set `scheduler.max_num_batched_tokens` and `max_num_seqs`; the guide Tuning says how"
COMPILED_BEFORE = "kernels are compiled before the server is ready, or in the background; the log says when"
HEALTH_WATCHES = "an engine that makes no progress is reported by /livez; a supervisor restarts the server"
LOGGING_OPTIONS = "set `server.log_level`, `server.log_format` or `server.log_config_file`"
EFFORT_IN_TEMPLATE = "the reasoning effort is passed to the chat template as it is"
THINKING_IS_SWITCHED = "thinking is switched in the chat template; a template without a switch has no effort for it"
NO_COHERE = "this build has no Cohere API and none of its prompt formats; the chat template makes the prompt"
TIMES_IN_LOG = "the log has one line of timings per request, /metrics the histograms"
NO_FINGERPRINT = "`system_fingerprint` is always null; GET /version and GET /server_info say what runs"
WHOLE_ANSWERS = "`server.enable_log_outputs` logs each answer once, complete"
HTTP_ONLY = "this build serves HTTP only"
VARIABLES_CHECKED = "an unknown ENGINE__ variable always ends the start; variables of other programs are not checked"
