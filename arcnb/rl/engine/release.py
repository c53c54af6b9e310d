"""Giving back the GPU memory of the vLLM engine in a training process, which vLLM has no call for.

Dropping the engine frees nothing. torch's compiler keeps a hook of each model that vLLM 0.23 compiles for as
long as the process lives, and with it weights and cache; `shutdown` does not take the hook away. And when an
engine opens, vLLM tells Python's garbage collector to pass over all that is there already: the policy, whose
trainer is full of cycles, would stay for good as well. So the engine's storages are emptied, whoever refers
to them, and the collector sees everything again.
"""

from __future__ import annotations

import gc

from arcnb.machine.gpus import release_memory


def release_engine(trainer) -> None:
    """After a training: the engine in its process is of no more use, and neither is a policy that shares its
    weights. Does nothing for a trainer that samples in any other way. In several processes each is asked."""
    generation = getattr(trainer, "vllm_generation", None)
    if (llm := getattr(generation, "llm", None)) is None:
        return
    from torch.utils._pytree import tree_leaves
    from vllm.compilation.cuda_graph import CUDAGraphWrapper
    from vllm.platforms import current_platform

    runner = llm.llm_engine.model_executor.driver_worker.model_runner
    # Buffers stay: vLLM hands its tables of positions to the next engine (`_ROPE_DICT`), and they are small.
    for tensor in (*tree_leaves(runner.kv_caches), *runner.model.parameters()):
        tensor.untyped_storage().resize_(0)
    CUDAGraphWrapper.clear_all_graphs()
    # The next engine captures its graphs in memory of its own: torch bears no pool whose last graph is gone.
    type(current_platform)._global_graph_pool = None
    generation.llm = None
    gc.unfreeze()
    release_memory()
