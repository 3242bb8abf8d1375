# syntax=docker/dockerfile:1
# The program with its engine for NVIDIA GPUs, which is used where the container gets one (`--gpus all`), in a small image:
#
#     docker build --tag spattn .
#     docker run --rm --volume "$PWD:/work" spattn eval

FROM nvidia/cuda:13.0.2-devel-ubuntu24.04 AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates curl gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN curl --proto =https --tlsv1.2 --fail --silent --show-error --output /tmp/rustup.sh https://sh.rustup.rs \
    && sh /tmp/rustup.sh -y --profile minimal --default-toolchain 1.90.0
ENV PATH=/root/.cargo/bin:$PATH CUDA_HOME=/usr/local/cuda
WORKDIR /source
COPY . .
RUN cargo build --profile dist --locked --features cuda

# Its libraries are those that the engine loads at run time: cuBLAS of CUDA 13. The driver comes from the host.
FROM nvidia/cuda:13.0.2-runtime-ubuntu24.04
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /source/target/dist/spattn /usr/local/bin/spattn
# Results, data and the cache of models are in the folder that is mounted here.
ENV HF_HOME=/work/.cache/huggingface
WORKDIR /work
ENTRYPOINT ["spattn"]
CMD ["eval"]
