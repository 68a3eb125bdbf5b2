# docker build -t usher --build-arg VERSION=v0.1.0 --build-arg COMMIT=$(git rev-parse HEAD) .
#
# The final image comes from two folders of the stage "build": /image and /state. With
# --build-context build=DIR a folder of yours, with those two in it, replaces that stage. So
# you can build the image from an existing binary, without a registry or a compiler, as
# deploy/image_test.go does.

# The same version as in go.mod's toolchain line.
FROM --platform=$BUILDPLATFORM golang:1.27.3-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION
ARG COMMIT
ARG TARGETOS
ARG TARGETARCH
RUN .ci/build -o /dist "${TARGETOS:-linux}/${TARGETARCH:-amd64}" \
    && install -D "/dist/usher-${TARGETOS:-linux}-${TARGETARCH:-amd64}" /image/usher \
    && install -D -m 644 /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ca-certificates.crt \
    && install -d -m 1777 /image/tmp \
    && mkdir /state

FROM scratch
ARG VERSION
ARG COMMIT
LABEL org.opencontainers.image.title="usher" \
      org.opencontainers.image.description="Puts an OAuth token on each call to a billing service; checks, deduplicates and forwards its webhooks" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
COPY --from=build /image/ /
# For an inbox: a new volume that is mounted here belongs to the user below.
COPY --from=build --chown=65532:65532 /state /var/lib/usher
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
ENTRYPOINT ["/usher"]
# It asks the admin port, on loopback.
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s --retries=3 CMD ["/usher", "healthcheck"]
