# ASTuner with verl, each in its own environment:
#
#   docker build --file docker/verl.Dockerfile --build-arg VARIANT=gpu --tag astune-verl .
#   docker run --gpus all --shm-size 16g --volume "$PWD/launcher_record:/home/astune/launcher_record" \
#       astune-verl --conf FILE --backbone verl
#
# The CUDA libraries are among the wheels; of the host it takes a driver for CUDA 13 and NVIDIA's container toolkit.
# VARIANT=cpu takes the environment without GPUs.
FROM python:3.11-slim-bookworm

# make for the environments; a compiler for the kernels that Triton and PyTorch build at run time.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home --shell /bin/bash astune \
    && install --directory --owner=astune /home/astune/launcher_record
USER 1000
WORKDIR /home/astune
ENV PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1

# What the environments are made from, and no more: they stay as they are where only ASTuner's code changes.
COPY --chown=astune Makefile pyproject.toml README.md LICENSE vsdb.py ./
COPY --chown=astune astune/__init__.py astune/
COPY --chown=astune requirements requirements
COPY --chown=astune scripts/install.sh scripts/ray_stand_in.sh scripts/make_peer_env.sh scripts/
# ASTuner's own process does not train here: torch built for CPUs is enough for it.
ARG TORCH_FOR_CPUS=https://download.pytorch.org/whl/cpu
ARG EXTRAS=local,agentscope,frozenlake,data,debug
RUN PIP_EXTRA_INDEX_URL="$TORCH_FOR_CPUS" make install
ARG VARIANT=gpu
RUN if [ "$VARIANT" = cpu ]; then export PIP_EXTRA_INDEX_URL="$TORCH_FOR_CPUS"; fi; make env-verl

COPY --chown=astune . .
ENV PATH=/home/astune/.venv/bin:$PATH
ENTRYPOINT ["astune"]
