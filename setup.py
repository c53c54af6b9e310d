"""A wheel holds the notebooks, so that `arcnb init` can lay them out where there is no checkout."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithNotebooks(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:  # a checkout has them already
            traces = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
            target = Path(self.build_lib, "arcnb", "notebooks")
            shutil.copytree("notebooks", target, dirs_exist_ok=True, ignore=traces)


setup(cmdclass={"build_py": WithNotebooks})
