#!/usr/bin/env python3
"""Makes `src/esker/_proto` from the published `.proto` files; building the package runs it.

By hand, after a change of the protocol (needs the version of grpcio-tools that pyproject.toml names):

    python generate.py
"""

from __future__ import annotations

import pathlib
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PROTO = HERE.parent.parent / "crates" / "wire" / "proto"
OUT = HERE / "src" / "esker" / "_proto"

# Each becomes `_proto/<name>_pb2.py` and `_proto/<name>_pb2_grpc.py`.
FILES = {"log": "esker/log/v1/log.proto", "map": "esker/map/v1/map.proto"}


def generate() -> None:
    """Makes the modules anew.

    They stand in a package of their own, so that `esker.log` is free for people. The descriptors keep the name of the published file: programs that
    made modules from it themselves can be in the same process.
    """
    if not PROTO.is_dir():
        if (OUT / "__init__.py").is_file():
            return
        raise FileNotFoundError(f"{PROTO}: there are neither the .proto files nor modules made from them")
    import grpc_tools
    from grpc_tools import protoc

    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--{kind}_out={folder}" for kind in ("python", "grpc_python", "pyi")]
        status = protoc.main(["protoc", f"-I{PROTO}", f"-I{well_known}", *flags, *FILES.values()])
        if status != 0:
            raise RuntimeError(f"protoc failed with status {status}")
        for name, file in FILES.items():
            package = pathlib.PurePosixPath(file).parent
            dotted = ".".join(package.parts)
            for made in sorted((pathlib.Path(folder) / package).glob(f"{name}_pb2*")):
                text = made.read_text(encoding="utf-8")
                text = text.replace(f"from {dotted} import", "from esker._proto import")
                text = text.replace(f"'{dotted}.{name}_pb2'", f"'esker._proto.{name}_pb2'")
                (OUT / made.name).write_text(text, encoding="utf-8")
    (OUT / "__init__.py").write_text('"""Made by generate.py from the published files."""\n', encoding="utf-8")


if __name__ == "__main__":
    generate()
