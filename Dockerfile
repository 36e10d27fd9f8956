# The service and the agents' server, on a CPU, as a user without rights:
#   docker build -t metatkgr .
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD:/data" metatkgr serve events.csv --host 0.0.0.0 --token-file tokens.toml
FROM python:3.11-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/metatkgr
RUN /opt/metatkgr/bin/python -m pip install --no-cache-dir -c constraints.txt --extra-index-url $TORCH_INDEX torch
RUN /opt/metatkgr/bin/python -m pip install --no-cache-dir -c constraints.txt ".[mcp,postgresql]"

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 metatkgr && mkdir /data && chown metatkgr /data
COPY --from=build /opt/metatkgr /opt/metatkgr
ENV PATH=/opt/metatkgr/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_DATA_HOME=/data/.local
USER metatkgr
WORKDIR /data
VOLUME /data
EXPOSE 8000
ENTRYPOINT ["metatkgr"]
CMD ["--help"]
