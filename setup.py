"""Builds the native core; all metadata is in pyproject.toml."""

from __future__ import annotations

import os
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
TORCH = Path(torch.__file__).parent
SOURCES = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc").glob("*.cpp"))
HEADERS = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc").glob("*.h"))


class BuildExt(build_ext):
    """Compiles the sources side by side: setuptools would take them one after the other."""

    def build_extension(self, ext: Extension) -> None:
        compiler = self.compiler
        compile_one = compiler.compile

        def compile_all(sources: list[str], **kwargs: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                jobs = [pool.submit(compile_one, [source], **kwargs) for source in sources]
            return [obj for job in jobs for obj in job.result()]

        compiler.compile = compile_all  # type: ignore[method-assign]
        super().build_extension(ext)


setup(
    ext_modules=[
        Extension(
            "torch_webgpu._C",
            SOURCES,
            depends=HEADERS,
            include_dirs=[
                str(TORCH / "include"),
                str(TORCH / "include/torch/csrc/api/include"),
                str(TORCH / "include/kineto"),
                sysconfig.get_paths()["include"],
            ],
            library_dirs=[str(TORCH / "lib")],
            libraries=["c10", "torch_cpu", "torch", "torch_python", "dl"],
            # PyTorch's C++ library by its name: a compiler that links its own statically, or has no other, would bring a
            # second copy into the process, and streams and exceptions that meet both crash.
            extra_link_args=["-l:libstdc++.so.6"] if sys.platform == "linux" else [],
            runtime_library_dirs=[str(TORCH / "lib")],
            extra_compile_args=["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wno-sign-compare"],
            define_macros=[("TORCH_WEBGPU_DISTRIBUTED", "1")] if torch.distributed.is_available() else [],
            language="c++",
        )
    ],
    cmdclass={"build_ext": BuildExt},
)
