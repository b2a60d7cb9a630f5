# SPDX-License-Identifier: BSD-3-Clause
"""The package pier of Spack 1.0 or later: copy it to packages/pier in a repository of packages."""

import os

from spack.package import depends_on, extends, license, variant, version
from spack_repo.builtin.build_systems.meson import MesonPackage

SOURCE_URL = os.environ.get("PIER_SOURCE_URL", "https://pier.invalid")


class Pier(MesonPackage):
    """Moves data directly between device memory and RDMA NICs, centred on dma-bufs."""

    homepage = SOURCE_URL
    url = SOURCE_URL + "/pier-0.2.0.tar.gz"

    license("BSD-3-Clause")

    # `tools/release` prints the checksum: spack checksum pier
    version("0.2.0")

    variant("python", default=False, description="the Python package")
    variant("nixl", default=False, description="the backend of NIXL")
    variant("uring", default=True, description="pier cp writes with io_uring")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+nixl")
    depends_on("meson@1.0.1:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("rdma-core@34:")
    depends_on("openssl@3:")
    depends_on("liburing", when="+uring")
    depends_on("python@3.11:", when="+python", type=("build", "link", "run"))
    extends("python", when="+python")

    def meson_args(self):
        parts = [f"-D{part}={'enabled' if '+' + part in self.spec else 'disabled'}"
                 for part in ("python", "nixl", "uring")]
        return ["-Dtests=disabled", "-Dmpi=disabled", *parts]
