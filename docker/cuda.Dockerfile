# syntax=docker/dockerfile:1
# GPU image: make image KIND=cuda. The host has the NVIDIA driver and its container toolkit; torch brings CUDA.
# BASE is a tag, since digests change with each security update: a release passes the digest of the day as
# --build-arg BASE=python:3.12-slim-bookworm@sha256:...
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS wheel
# No versions: the distribution keeps only the newest of each package.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
COPY packages packages
RUN STOKER_BUILD_KERNELS=all pip wheel --no-cache-dir --no-deps --verbose --wheel-dir /wheels . ./packages/*

FROM ${BASE} AS packages
ARG TORCH_INDEX=https://pypi.org/simple
ARG TORCH=2.13.0
RUN python -m venv /opt/stoker \
    && /opt/stoker/bin/pip install --no-cache-dir --index-url "${TORCH_INDEX}" "torch==${TORCH}"
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    wheel="$(echo /wheels/stoker-*.whl)" \
    && /opt/stoker/bin/pip install --no-cache-dir "${wheel}[engine,cuda]" /wheels/stoker_*.whl

FROM ${BASE}
# Triton compiles a C stub for each kernel that it launches.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=packages /opt/stoker /opt/stoker
# The only folder that is written to, besides /tmp: downloaded models and GPU kernels. It can be a volume; all else can be read-only.
RUN install --directory --owner=10001 --group=10001 --mode=0700 /var/cache/stoker
ENV PATH=/opt/stoker/bin:$PATH \
    HOME=/tmp \
    XDG_CACHE_HOME=/var/cache/stoker \
    TRITON_CACHE_DIR=/var/cache/stoker/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    ENGINE__SERVER__HOST=0.0.0.0
USER 10001:10001
WORKDIR /etc/stoker
EXPOSE 8000
# `engine render` writes probes that know the port and TLS; this one is for `docker run` with plain HTTP.
HEALTHCHECK --interval=10s --timeout=5s --start-period=1h --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('ENGINE__SERVER__PORT', '8000') + '/readyz', timeout=3)"]
ENTRYPOINT ["engine"]
CMD ["--help"]
