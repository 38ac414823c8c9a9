"""The core is usable alone: it needs jax and flax, and nothing else of this package."""

import subprocess
import sys

from tests.builders import readme_example

BLOCKED = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        refused = {'dm_control', 'mujoco', 'gymnasium', 'h5py', 'matplotlib', 'tyro', 'jaxtyping'}
        if name.split('.')[0] in refused:
            raise ImportError(f'{name} is not there')
        if name.startswith('agentic_bpt.') and not name.startswith('agentic_bpt.blockwise'):
            if name != 'agentic_bpt.errors':
                raise ImportError(f'{name} is not of the core')

sys.meta_path.insert(0, Refuse())
"""


def test_in_someone_elses_model_with_nothing_else_installed():
    use = readme_example("Transformer") + "\nassert logits_BLV.shape == (1, 1000, 256)\n"
    done = subprocess.run([sys.executable, "-c", BLOCKED + use], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
