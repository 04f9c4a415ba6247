"""Emulators of S3 and of Google Cloud Storage: a program that prints their ports."""

import json
import time

from gcp_storage_emulator import server
from moto.server import ThreadedMotoServer

read_others = server._read_data


def read_data(handler, query):
    """Keep a carriage return at the end of a file, which the emulator drops."""
    kind = handler.headers.get("Content-Type") or ""
    if not kind.startswith("multipart/related"):
        return read_others(handler, query)
    _, meta, content = server._read_raw_data(handler).split(b"\n\n", 2)
    return {
        "meta": json.loads(meta.partition(b"\n--")[0]),
        "content": content.removesuffix(b"\n--==0==--"),  # of gcsfs
        "content-type": "application/octet-stream",
    }


if __name__ == "__main__":
    server._read_data = read_data
    s3 = ThreadedMotoServer(port=0)
    gs = server.create_server("localhost", 0, in_memory=True)
    s3.start()
    gs.start()
    port = gs._api._httpd.socket.getsockname()[1]
    print("ports", s3.get_host_and_port()[1], port, flush=True)
    time.sleep(3600)
