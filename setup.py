"""Generates the protobuf modules of ``dartspec.v1`` while the package is built or installed in place."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


def generate_stubs() -> None:
    """Writes ``dartspec/v1/*_pb2.py``, ``*_pb2_grpc.py`` and ``*.pyi`` from ``proto/dartspec/v1``."""
    import grpc_tools
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    protos = sorted(str(path) for path in (ROOT / "proto" / "dartspec" / "v1").glob("*.proto"))
    out = ROOT / "dartspec" / "v1"
    out.mkdir(exist_ok=True)
    arguments = ["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}"]
    arguments += [f"--python_out={ROOT}", f"--pyi_out={ROOT}", f"--grpc_python_out={ROOT}", *protos]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed on proto/dartspec/v1")
    (out / "__init__.py").write_text('"""Generated from proto/dartspec/v1."""\n')


class BuildWithStubs(build_py):
    """``build_py`` with generated protobuf modules."""

    def run(self) -> None:
        generate_stubs()
        # The packages were listed before the generated one existed.
        self.distribution.packages = sorted({*(self.distribution.packages or []), "dartspec.v1"})
        self.packages = self.distribution.packages
        super().run()


setup(cmdclass={"build_py": BuildWithStubs})
