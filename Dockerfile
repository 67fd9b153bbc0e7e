# The gateway's image. Build it with Docker, Podman or Buildah:
#   docker build -t sluicegate .
# With the simulated engine and the bench in it as well:
#   docker build -t sluicegate:bench --build-arg REQUIREMENTS=bench .
# Any base with Python >= 3.11 and its venv module will do; `make image-test` uses plain Debian.
ARG BASE=python:3.12-slim

FROM ${BASE} AS builder
# pip's own settings, for networks with a registry of their own; nothing of them gets into the image.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT
ARG REQUIREMENTS=runtime
WORKDIR /src
COPY requirements/ requirements/
# Two environments: what makes the wheel stays here, what runs it has neither pip nor a compiler.
RUN python3 -m venv /opt/build \
 && python3 -m venv --without-pip /opt/sluicegate \
 && /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary :all: \
      --require-hashes -r requirements/build.txt \
 && /opt/build/bin/pip --python /opt/sluicegate/bin/python install --no-cache-dir \
      --disable-pip-version-check --only-binary :all: --require-hashes -r requirements/${REQUIREMENTS}.txt
COPY pyproject.toml README.md LICENSE ./
COPY gateway/ gateway/
COPY loadgen/ loadgen/
RUN /opt/build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-index --no-deps \
      --no-build-isolation --wheel-dir /dist . \
 && /opt/build/bin/pip --python /opt/sluicegate/bin/python install --no-cache-dir \
      --disable-pip-version-check --no-index --no-deps /dist/sluicegate-*.whl

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluicegate" \
      org.opencontainers.image.description="Admission-control gateway in front of vLLM engines" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=builder /opt/sluicegate /opt/sluicegate
# The one place it may write to; everything else may be mounted read-only.
RUN mkdir -p /etc/sluicegate /var/lib/sluicegate \
 && chown 10001:10001 /var/lib/sluicegate \
 && chmod 0750 /var/lib/sluicegate
ENV PATH=/opt/sluicegate/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/sluicegate
# A number, so that an orchestrator can tell that it is not root.
USER 10001:10001
EXPOSE 8080 8081
# Unready at once, still serving, then draining: server.shutdown_delay_s and drain_deadline_s. Give
# the container longer than both together (docker stop --time).
STOPSIGNAL SIGTERM
# Alive, not ready: a gateway that waits for its engines or drains must not be restarted for it.
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s CMD ["sluicegate", "health", "--live"]
ENTRYPOINT ["sluicegate"]
CMD ["serve", "--config", "/etc/sluicegate/gateway.toml"]
