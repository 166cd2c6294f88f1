# Build (docs/container.md has the other arguments, and the options of a production run):
#   podman build --format docker --tag image-service .
# Try it, with a sample image and no other service:
#   podman run --rm --publish 8080:8080 --env LISTEN_ADDRESS=0.0.0.0 image-service serve --standalone
# Run it:
#   podman run --detach --name image-service --publish 8080:8080 --env-file image-service.env \
#       --volume image-service:/data --stop-timeout 30 --read-only image-service

# The base image needs Python >= 3.11, pip and CA certificates; xorriso, gpgv and util-linux, or apt-get or dnf to
# install them and bubblewrap. A tag may name another image tomorrow; for production give a digest:
# --build-arg BASE_IMAGE=docker.io/library/python@sha256:...
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
# Wheels only, because building one would fetch and run what no lock has. On platforms without wheels:
# --build-arg ONLY_BINARY=:none:
ARG ONLY_BINARY=:all:
# requirements-jobs.lock for the jobs role and its workers, whose programs are PACKAGES below.
ARG LOCK=requirements.lock
WORKDIR /src
COPY requirements.lock requirements-jobs.lock requirements-build.lock ./
RUN for purpose in image-service build; do python3 -m venv --without-pip /opt/$purpose; done \
    && install() { \
        environment=$1 && shift && python3 -m pip --python "/opt/$environment/bin/python" install --no-cache-dir \
            --require-hashes --only-binary="$ONLY_BINARY" --requirement "$@"; \
    } && install image-service "$LOCK" && install build requirements-build.lock --no-compile
COPY . .
# The date in the wheel and the SBOM: seconds since 1970. Without it the SBOM has none.
ARG SOURCE_DATE_EPOCH
ARG VERSION
RUN python3 -m pip --python /opt/build/bin/python wheel --no-cache-dir --no-index --no-deps --no-build-isolation \
        --wheel-dir /opt/build/dist . \
    && { test -z "$VERSION" || ls /opt/build/dist/image_service-"$VERSION"-py3-none-any.whl; } \
    && python3 -m pip --python /opt/image-service/bin/python install --no-cache-dir --no-index --no-deps \
        /opt/build/dist/*.whl \
    && /opt/build/bin/python .ci/sbom.py /opt/image-service/bin/python "$LOCK" \
        >/opt/image-service/sbom.cdx.json \
    # The tests of the packages take 24 MB, most of them Twisted's.
    && find /opt/image-service -type d '(' -name test -o -name tests ')' -prune -exec rm -r {} +

FROM ${BASE_IMAGE}
# Of the distribution, beside those that are always installed.
ARG PACKAGES=
RUN test -z "$PACKAGES" && command -v xorriso && command -v gpgv || if command -v dnf; then \
        dnf --assumeyes install bubblewrap gnupg2 util-linux xorriso $PACKAGES && dnf clean all; \
    else \
        apt-get update && apt-get install --yes --no-install-recommends bubblewrap gpgv xorriso $PACKAGES \
            && apt-get clean && rm -r /var/lib/apt/lists/*; \
    fi
COPY --from=build /opt/image-service /opt/image-service
ENV PATH=/opt/image-service/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DATA_DIR=/data
# twistd writes its plugin cache, as root. Group 0 may write the data, because OpenShift runs containers under
# an arbitrary uid of that group.
RUN twistd --help >/dev/null && install --directory --mode=0775 --group=0 /data
# The base image has labels of the same names; empty ones take their place if these are not given.
ARG VERSION
ARG REVISION
ARG SOURCE
LABEL org.opencontainers.image.title="image-service" \
      org.opencontainers.image.description="Serves customized CoreOS boot images without storing them" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      io.k8s.display-name="image-service" \
      io.openshift.expose-services="8080:http" \
      io.openshift.tags="coreos,discovery,iso"
USER 1001:0
WORKDIR /data
VOLUME /data
# With --standalone the service listens on the container's loopback, unless LISTEN_ADDRESS is set.
EXPOSE 8080
STOPSIGNAL SIGTERM
# Whether the process responds: while base images are downloaded, a restart does not help.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["image-service", "health", "--live"]
ENTRYPOINT ["image-service"]
CMD ["serve"]
