"""Rules about `parallel`: the command lines that break each one, and those that keep it; see test_rules.py."""

from __future__ import annotations

from .kv_transfer import FOLDER, SHARED, TCP

_RAY = "-dp 4 -dpb ray"
MOVING = "--enable-eplb -ep -tp 2"
HYBRID = "-dp 4 --data-parallel-hybrid-lb"
_OTHER = "--model {} --load-format dummy --skip-tokenizer-init"
_SHARING = f"-ep {_OTHER.format('MIXTURE')}"  # of 16 experts
BARE_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R513": (["--distributed-executor-backend external_launcher"], ["-tp 2"]),
}
CASES: dict[str, tuple[list[str], list[str]]] = {
    "R137": (["-dpn 1", "-dp 2 -dpn 2"], ["-dpn 0", "-dp 2 -dpn 1"]),
    "R138": (
        [HYBRID, f"{HYBRID} -dpr 2", f"{HYBRID} -dpl 2", f"{HYBRID} -dpr 3 -dpl 2"],
        [f"{HYBRID} -dpr 2 -dpl 2", f"{HYBRID} -dpr 0 -dpl 2", "-dp 2"],
    ),
    "R139": (
        [
            *(f"{HYBRID} -dpr 2 -dpl 2 -dpn 1", f"{HYBRID} -dpr 2 -dpl 2 --data-parallel-external-lb"),
            *(f"{HYBRID} -dpl 2 -dpr 2 -dpa localhost", "-dp 4 -dpn 3 -dpl 1 -dpa localhost"),
            *(f"{_RAY} -dpl 2 -dpa localhost", f"{_RAY} -dpn 1", f"{_RAY} -dpl 2 -dpr 2 --data-parallel-hybrid-lb"),
        ],
        [
            *("-dp 2 -dpn 1 --data-parallel-external-lb", f"{HYBRID} -dpr 2 -dpl 2", "-dp 4 -dpl 2 -dpa localhost"),
            *(_RAY, f"{_RAY} -dpl 2", "-dp 4 -dpn 1"),
        ],
    ),
    "R140": (["-dpl 2", "-dp 2 -dpl 3"], ["-dp 2 -dpl 2", "-dpl 1"]),
    "R370": (
        ["-dp 4 -dpl 2", "-dp 4 -dpr 0", "-dp 4 -dpl 2 -dpr 2", f"{_RAY} -dpr 0"],
        [
            "-dp 4 -dpl 4",
            f"{HYBRID} -dpl 2 -dpr 2",
            "-dp 4 -dpn 3 -dpl 1",
            "-dp 4 -dpl 2 -dpa localhost",
            f"{_RAY} -dpl 2",
        ],
    ),
    "R411": (
        ["-dp 2 -dpa localhost", "-dp 2 -dpl 2 -dpa localhost", "-dp 4 -dpl 2 -dpr 3 -dpa localhost"],
        ["-dp 2 -dpl 1 -dpa localhost", "-dp 4 -dpl 2 -dpr 2 -dpa localhost", "-dp 2", "-dp 1 -dpa localhost"],
    ),
    "R412": (
        ["-dp 2 -dpl 1 -dpa localhost -asc 2", f"{_RAY} -asc 2"],
        ["-dp 2 -dpl 1 -dpa localhost", "-dp 2 -dpl 1 -dpr 1 -dpa localhost -asc 2", "-dp 2 -asc 2"],
    ),
    "R371": (
        ["--data-parallel-external-lb"],
        ["--data-parallel-external-lb -dpn 0", "-dpn 0"],
    ),
    "R372": (["-dp 2 -dpn 0 -dpl 2"], ["-dp 2 -dpn 0 -dpl 1", "-dp 2 -dpn 0"]),
    "R373": (
        ["-dp 2 --disable-frontend-multiprocessing", f"{_RAY} -dpl 1 --disable-frontend-multiprocessing"],
        ["-dp 2", "-dp 2 -dpn 1 --disable-frontend-multiprocessing"],
    ),
    "R151": (
        ["--disable-custom-all-reduce"],
        ["-tp 2 --disable-custom-all-reduce", f"{_SHARING} -dp 2 --disable-custom-all-reduce"],
    ),
    "R397": (
        ["--distributed-executor-backend uni -tp 2", "--distributed-executor-backend uni -pp 2"],
        ["--distributed-executor-backend uni", "--distributed-executor-backend mp -tp 2"],
    ),
    "R398": (
        ["--distributed-executor-backend mp", "--distributed-executor-backend ray"],
        ["--distributed-executor-backend mp -pp 2", "-pp 2"],
    ),
    "R391": (
        ["-ep", "-ep -tp 2", "-ep -dp 2", f"-ep {_OTHER.format('MIXTURE')}"],
        ["", f"{_SHARING} -dp 2", f"{_SHARING} -tp 2"],
    ),
    "R484": (
        [f"{_SHARING} -dp 2 --device cuda"],
        [f"{_SHARING} -dp 2", f"{_SHARING} -tp 2 --device cuda", "-ep -dp 2 --device cuda"],
    ),
    "R485": (
        [f"{_SHARING} -dp 2 -pp 2", f"{_SHARING} -dp 2 -pcp 2"],
        [f"{_SHARING} -dp 2", f"{_SHARING} -dp 2 -tp 2", f"{_SHARING} -dp 2 -tp 2 -pp 2", "-ep -dp 2 -pp 2"],
    ),
    "R486": (
        [
            f"{_SHARING} -dp 2 -dpn 1",
            f"{_SHARING} {HYBRID} -dpr 2 -dpl 2",
            f"{_SHARING} -dp 2 -dpl 1 -dpa localhost",
            f"{_SHARING} {_RAY}",
        ],
        [f"{_SHARING} -dp 2", f"{_SHARING} -dp 2 -dpl 2", "-ep -dp 2 -dpn 1"],
    ),
    "R487": (
        [f"{_SHARING} -dp 2 --enforce-eager", f"{_SHARING} -dp 2 --disable-custom-all-reduce"],
        [f"{_SHARING} -dp 2", f"{_SHARING} -tp 2 --disable-custom-all-reduce", "-ep -dp 2 --enforce-eager"],
    ),
    "R488": (
        [f"{_SHARING} -dp 17", f"{_SHARING} -dp 64", f"{_SHARING} -dp 2 --model-impl transformers"],
        [f"{_SHARING} -dp 16", "-ep -dp 64"],
    ),
    "R489": ([f"{_SHARING} -dp 2 --enable-sleep-mode"], [f"{_SHARING} -dp 2", "-ep -dp 2 --enable-sleep-mode"]),
    "R392": (["--expert-placement-strategy round_robin"], ["--expert-placement-strategy round_robin -tp 2 -ep"]),
    "R142": (["--enable-eplb", "--enable-eplb -ep", "--enable-eplb -tp 2"], ["--enable-eplb -ep -tp 2", "-ep -tp 2"]),
    "R143": (
        ["--eplb-config.num_redundant_experts 2", "-ep -tp 2 --num-redundant-experts 2"],
        [f"{MOVING} --eplb-config.num_redundant_experts 2", "--eplb-config.num_redundant_experts 0"],
    ),
    "R460": (
        ["--eplb-config.window_size 5", "--eplb-window-size 5"],
        [f"{MOVING} --eplb-config.window_size 5", "--eplb-config.num_redundant_experts 2"],
    ),
    "R461": ([f"{MOVING} --device cuda"], [MOVING, "--device cuda -ep -tp 2"]),
    "R462": ([f"{MOVING} --batch-invariant"], [MOVING, "-ep -tp 2 --batch-invariant"]),
    "R463": (
        [f"{MOVING} --eplb-config.step_interval 999", f"{MOVING} --eplb-config.window_size 3001"],
        [MOVING, f"{MOVING} --eplb-config.step_interval 7 --eplb-config.window_size 7"],
    ),
    "R464": ([f"{MOVING} --worker-extension-cls package.module:Class", f"{MOVING} --worker-cls a.b:C"], [MOVING]),
    "R465": (["--worker-cls Own"], ["", "--worker-cls auto", "--worker-cls tests.own_code:OwnWorker"]),
    "R385": (
        ["-tp 3", "-tp 2 --model-impl transformers"],
        ["-tp 2", "-tp 1", "-pp 2", "-tp 2 --kv-directory blocks", "-tp 2 --kv-offloading-size 1"],
    ),
    "R504": (
        [
            *("-pp 2 --kv-directory blocks", "-tp 4 -dcp 2 --kv-offloading-size 1"),
            *(
                "-tp 2 --kv-directory blocks --device cuda",
                "-tp 2 --kv-directory blocks --distributed-executor-backend external_launcher",
            ),
        ],
        [
            *("-pp 2", "-tp 2 --kv-directory blocks", "-tp 2 --kv-offloading-size 1"),
            *(
                "--kv-directory blocks --device cuda",
                "--kv-directory blocks --distributed-executor-backend external_launcher",
            ),
        ],
    ),
    "R134": (["-dcp 2", "-tp 2 -dcp 4"], ["-tp 2", "-tp 2 -dcp 1"]),
    "R480": (
        ["-tp 2 -dcp 2", "-tp 4 -dcp 4", *(f"-tp 4 -dcp 2 {_OTHER.format(name)}" for name in ("STATES", "SHARED"))],
        ["-tp 4 -dcp 2", f"-tp 2 -dcp 2 {_OTHER.format('LATENTS')}"],
    ),
    "R482": (
        ["-tp 4 -dcp 2 --cp-kv-cache-interleave-size 3", "-tp 4 -dcp 2 --block-size 8 --cp-kv-cache-interleave-size 8"],
        ["-tp 4 -dcp 2", "-tp 4 -dcp 2 --block-size 8 --cp-kv-cache-interleave-size 4"],
    ),
    "R490": (
        ["--enable-dbo", "-tp 2 --enable-dbo", "-tp 2 -pp 2 --enforce-eager --ubatch-size 2", "-pcp 2 --ubatch-size 3"],
        [
            "",
            "-pcp 2 --enable-dbo",
            "-tp 2 --enable-dbo --enforce-eager",
            "-tp 2 -n 2 --ubatch-size 3",
            "-tp 2 --ubatch-size 1",
        ],
    ),
    "R491": (
        ["--dbo-decode-token-threshold 8", "-tp 2 --enforce-eager --enable-dbo --ubatch-size 1"],
        ["-tp 2 --enforce-eager --enable-dbo --dbo-prefill-token-threshold 8"],
    ),
    "R492": (
        ["-tp 4 --batch-invariant --enforce-eager", "-tp 4 -n 2 --batch-invariant"],
        ["-tp 4 --batch-invariant", "-tp 2 -n 2 --batch-invariant", "-tp 4 --enforce-eager"],
    ),
    "R493": (
        [
            *("-pcp 2 -pp 2", "-pcp 2 -tp 4 -dcp 2", f"-pcp 2 {MOVING}", "-pcp 2 --device cuda"),
            "-pcp 2 --distributed-executor-backend external_launcher",
        ],
        [
            "-pcp 2",
            "-pcp 2 --enable-dbo",
            "-pcp 2 --kv-directory blocks",
            "-pcp 2 -tp 2",
            "-pcp 4 -n 2",
            "-pcp 2 -dp 2",
            f"-pcp 2 -tp 2 {_SHARING}",
        ],
    ),
    "R495": (["-pcp 4 --max-num-batched-tokens 127"], ["-pcp 4 --max-num-batched-tokens 128", "-pcp 2"]),
    "R494": (
        [f"-pcp 2 {_OTHER.format('STATES')}", "-pcp 2 --model-impl transformers"],
        ["-pcp 2", f"-pcp 2 {_OTHER.format('LATENTS')}", f"-pcp 2 {_OTHER.format('SHARED')}", _OTHER.format("STATES")],
    ),
    "R483": (["--cp-kv-cache-interleave-size 2"], ["", "-tp 4 -dcp 2 --cp-kv-cache-interleave-size 2"]),
    "R386": (["-tp 4 -dp 2", "-tp 2 -pp 3"], ["-tp 4", "-pp 4", "-tp 2 -dp 2", "-tp 4 -dp 2 -dpn 1"]),
    "R420": (["-r 1", "-n 2 -tp 2 -r 2"], ["", "-n 2 -tp 2 -r 1"]),
    "R421": (["-n 2", "-n 3 -tp 4"], ["-n 2 -tp 2", "-n 2 -pp 2", "-n 4 -tp 2 -pp 2"]),
    "R422": (["--headless", "-n 2 -tp 2 -r 1 --no-headless"], ["", "-n 2 -tp 2 -r 1", "-n 2 -tp 2 -r 1 --headless"]),
    "R423": (["-n 2 -tp 2 -dp 2"], ["-n 2 -tp 2", "-dp 2"]),
    "R424": (["-n 2 -tp 2"], ["-n 2 -tp 2 --master-addr 127.0.0.1", ""]),
    "R425": (["--master-addr 10.0.0.1", "--master-port 99"], ["-n 2 -tp 2 --master-addr 10.0.0.1", ""]),
    "R426": (
        ["-n 2 -tp 2 --distributed-executor-backend ray"],
        ["-tp 2 --distributed-executor-backend ray", "-n 2 -tp 2 --distributed-executor-backend mp"],
    ),
    "R472": (
        [f"{_RAY} -tp 2 --distributed-executor-backend ray"],
        [f"{_RAY} -tp 2", "-tp 2 --distributed-executor-backend ray"],
    ),
    "R473": ([f"{_RAY} {TCP}"], [f"{_RAY} {SHARED} {FOLDER}", f"-dp 4 {TCP}", f"{_RAY} --kv-directory /tmp/kv"]),
    "R474": (["-dpb ray"], [_RAY, "-dpb mp"]),
    "R440": (
        ["-tp 2 --distributed-executor-backend external_launcher --master-addr 10.0.0.1"],
        ["-tp 2 --distributed-executor-backend external_launcher", "--master-addr 10.0.0.1"],
    ),
    "R441": (
        ["-dp 2 --distributed-executor-backend external_launcher"],
        ["-dp 2", "-tp 2 --distributed-executor-backend external_launcher"],
    ),
    "R148": (
        ["--ray-workers-use-nsight", "-tp 2 --ray-workers-use-nsight"],
        ["", "-tp 2 --distributed-executor-backend ray --ray-workers-use-nsight"],
    ),
    "R446": (["--worker-extension-cls Updates"], ["", "--worker-extension-cls tests.own_code:Updates"]),
    "R448": (
        [
            "--worker-extension-cls tests.own_code:Updates --kv-directory /tmp",
            "--worker-cls tests.own_code:OwnWorker --kv-directory /tmp",
            "--worker-extension-cls tests.own_code:Updates --kv-offloading-size 1",
            "--worker-extension-cls tests.own_code:Updates --kv-transfer-config.kv-connector TcpConnector",
        ],
        ["--worker-extension-cls tests.own_code:Updates", "--kv-directory /tmp"],
    ),
    "R375": (["-dp 5"], ["-dp 4", "-dp 8 -dpn 7", "-dp 8 -dpl 1 -dpb ray"]),
}
GPU_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R471": ([_RAY], [f"{_RAY} --device cpu", "-dp 1 -dpb ray"]),
    "R374": (["-dp 2", "-tp 2", "-pp 2"], ["", "-dp 2 -dpn 1", "-dp 2 --device cpu", "-tp 2 --device cpu"]),
    "R430": (
        ["-n 2 -tp 2 --master-addr 127.0.0.1", "-tp 2 --distributed-executor-backend ray"],
        ["", "-tp 2 --device cpu --distributed-executor-backend ray"],
    ),
    "R449": (
        ["--worker-extension-cls tests.own_code:Updates"],
        ["", "--worker-extension-cls tests.own_code:Updates --device cpu"],
    ),
    "R481": (["-tp 4 -dcp 2"], ["-tp 4", "-tp 4 -dcp 2 --device cpu"]),
    "R431": (["-tp 2 --disable-custom-all-reduce"], ["", "-tp 2 --disable-custom-all-reduce --device cpu"]),
}
