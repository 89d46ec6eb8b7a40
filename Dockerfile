# The command `leanbayes` on the CPU:
#     docker build -t leanbayes .
#     docker run --rm -v "$PWD:/work" leanbayes compare --data digits --out /work/out
FROM python:3.11-slim

RUN useradd --create-home --uid 1000 reader
WORKDIR /opt/leanbayes
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
# The build of torch for the CPU is several gigabytes smaller than the default one.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt '.[lab,data]'

USER 1000
WORKDIR /work
ENTRYPOINT ["leanbayes"]
CMD ["--help"]
