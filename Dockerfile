# An image that serves the default model: `docker build -t polyhead .`, `docker run -p 127.0.0.1:8000:8000 polyhead`.
# Targets: cpu (the last, so the default), gpu, full (exports what it is asked to serve), exporter. deploy/README.md
# tells the rest.
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

# What makes the wheel and the list of packages; nothing of it is served.
FROM ${PYTHON_IMAGE} AS tools
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY deploy/locks/build.txt /locks/
RUN python -m venv --without-pip /opt/build \
 && python -m pip --python /opt/build/bin/python install --no-compile --require-hashes --no-deps -r /locks/build.txt

FROM tools AS wheel
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY model model
COPY export export
COPY polyhead polyhead
COPY service service
COPY train train
RUN /opt/build/bin/python -m hatchling build --target wheel --directory /wheels

# torch comes after the hashed packages and by its exact version; deploy/locks/compile says why it has no hash. If the
# index of CPU builds does not answer, pip's own is asked, and gigabytes of CUDA packages come along.
FROM tools AS exporter-packages
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG PIP_NO_COMPILE=1
ENV ORT_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_TELEMETRY=1
COPY deploy/locks/exporter.txt /locks/
RUN python -m venv --without-pip /opt/polyhead \
 && python -m pip --python /opt/polyhead/bin/python install --require-hashes --no-deps -r /locks/exporter.txt \
 && { { [ -n "$TORCH_INDEX" ] && python -m pip --python /opt/polyhead/bin/python install --no-deps --retries 1 --timeout 15 \
         --index-url "$TORCH_INDEX" torch==2.13.0; } \
      || python -m pip --python /opt/polyhead/bin/python install torch==2.13.0; }
COPY --from=wheel /wheels /wheels
RUN python -m pip --python /opt/polyhead/bin/python install --no-deps --no-index /wheels/*.whl
ENV PATH=/opt/polyhead/bin:$PATH

# One export imports too little for compiling everything first to pay: 13,000 modules, more than a minute.
FROM exporter-packages AS artifact
ARG PRECISION=fp32
RUN python -m polyhead.export --output /artifact --precision "$PRECISION"

FROM exporter-packages AS exporter
# A file of torch is for a newer Python and is left out, as pip leaves it out.
RUN python -m compileall -q -q -j 0 /opt/polyhead || true
WORKDIR /work
ENTRYPOINT ["python", "-m", "polyhead.export"]
CMD ["--help"]

# What is served, without pip: hashed packages, then the service itself, then the list of both.
FROM tools AS packages-cpu
COPY deploy/locks/cpu.txt /locks/
RUN python -m venv --without-pip /opt/polyhead \
 && python -m pip --python /opt/polyhead/bin/python install --compile --require-hashes --no-deps -r /locks/cpu.txt
COPY --from=wheel /wheels /wheels
RUN python -m pip --python /opt/polyhead/bin/python install --compile --no-deps --no-index /wheels/*.whl \
 && /opt/build/bin/cyclonedx-py environment --output-reproducible --output-file /opt/polyhead/sbom.cdx.json /opt/polyhead

FROM tools AS packages-gpu
COPY deploy/locks/gpu.txt /locks/
RUN python -m venv --without-pip /opt/polyhead \
 && python -m pip --python /opt/polyhead/bin/python install --compile --require-hashes --no-deps -r /locks/gpu.txt
COPY --from=wheel /wheels /wheels
RUN python -m pip --python /opt/polyhead/bin/python install --compile --no-deps --no-index /wheels/*.whl \
 && /opt/build/bin/cyclonedx-py environment --output-reproducible --output-file /opt/polyhead/sbom.cdx.json /opt/polyhead

# No package manager for Python, no user with a name, no telemetry, nothing written: runs with a read-only root.
FROM ${PYTHON_IMAGE} AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG PYTHON_IMAGE
LABEL org.opencontainers.image.title="Polyhead" \
      org.opencontainers.image.description="An inference service for attention encoders that shows its heads" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
RUN python -m pip uninstall --yes --quiet setuptools wheel pip
ENV PATH=/opt/polyhead/bin:$PATH \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    ORT_DISABLE_TELEMETRY=1 \
    POLYHEAD_HOST=0.0.0.0 POLYHEAD_PORT=8000
WORKDIR /
EXPOSE 8000
# The start ends with the first success; the image `full` may export a model before it.
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s --retries=3 CMD ["python", "-IS", "-c", "\
import http.client, os, sys; \
port = os.environ.get('POLYHEAD_ADMIN_PORT') or os.environ['POLYHEAD_PORT']; \
connection = http.client.HTTPConnection('127.0.0.1', int(port), timeout=4); \
connection.request('GET', '/healthz'); \
sys.exit(connection.getresponse().status != 200)"]
ENTRYPOINT ["python", "-m", "polyhead.service"]

# `docker run polyhead:full MODEL`: a model by its name on the hub, exported once and kept in the volume /cache.
FROM runtime AS full
COPY --from=exporter /opt/polyhead /opt/polyhead
RUN install -d -o 10001 -g 10001 -m 700 /cache
ENV POLYHEAD_CACHE=/cache HF_HOME=/cache/hub HF_HUB_DISABLE_TELEMETRY=1 TMPDIR=/cache
VOLUME /cache
USER 10001:10001
ENTRYPOINT ["polyhead", "serve"]

FROM runtime AS gpu
ENV POLYHEAD_MODEL=/model POLYHEAD_PROVIDER=cuda NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=packages-gpu /opt/polyhead /opt/polyhead
COPY --from=artifact /artifact /model
USER 10001:10001

FROM runtime AS cpu
ENV POLYHEAD_MODEL=/model
COPY --from=packages-cpu /opt/polyhead /opt/polyhead
COPY --from=artifact /artifact /model
USER 10001:10001
