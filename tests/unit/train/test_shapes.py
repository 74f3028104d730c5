import pytest
import torch

from steelrail.config.schema import Model
from steelrail.train.model import Llama
from steelrail.train.shapes import parameter_shapes


@pytest.mark.parametrize("tied", [False, True])
def test_shapes_are_those_of_the_model_itself_in_its_order(tied: bool) -> None:
    sizes = {"dim": 24, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 40, "vocab_size": 61}
    shape = Model.model_validate({**sizes, "tied_embeddings": tied})
    with torch.device("meta"):
        model = Llama(shape, recompute=False)
    expected = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    assert expected == list(parameter_shapes(shape).items())
