import pytest
import torch
import torch.nn.functional as F

from steelrail.train import loss
from steelrail.train.loss import chunk_tokens, summed_cross_entropy


def inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(300, 16, dtype=dtype, requires_grad=True)
    weight = torch.randn(50, 16, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, 50, (300,))
    targets[::7] = -1
    return hidden, weight, targets


def reference(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy((hidden @ weight.T).float(), targets, reduction="sum", ignore_index=-1)


@pytest.mark.parametrize("chunk", [128, 100_000])
def test_loss_and_gradients_equal_those_of_torch_for_any_chunk(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(loss, "chunk_tokens", lambda vocab_size: chunk)
    hidden, weight, targets = inputs()
    expected = reference(hidden, weight, targets)
    expected_gradients = torch.autograd.grad(expected / 7, (hidden, weight))
    found = summed_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    gradients = torch.autograd.grad(found / 7, (hidden, weight))
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-4, atol=1e-5)


def test_bf16_weights_sum_their_gradient_over_chunks_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "chunk_tokens", lambda vocab_size: 4)
    hidden, weight, targets = inputs(torch.bfloat16)
    (gradient,) = torch.autograd.grad(summed_cross_entropy(hidden, weight, targets), weight)
    wide = [tensor.detach().float().requires_grad_() for tensor in (hidden, weight)]
    (expected,) = torch.autograd.grad(reference(wide[0], wide[1], targets), wide[1])
    error = (gradient.float() - expected).norm() / expected.norm()
    assert gradient.dtype == torch.bfloat16
    assert error < 0.01


def test_no_target_that_counts_is_no_loss_and_no_gradient() -> None:
    hidden, weight, targets = inputs()
    found = summed_cross_entropy(hidden, weight, torch.full_like(targets, -1))
    found.backward()
    assert found.item() == 0.0
    assert hidden.grad is not None and not hidden.grad.any()


def test_without_gradient_the_loss_is_the_same() -> None:
    hidden, weight, targets = inputs()
    with torch.no_grad():
        found = summed_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(found, reference(hidden, weight, targets).detach(), rtol=1e-5, atol=1e-4)


def test_a_chunk_of_llama_3_logits_takes_half_a_gibibyte() -> None:
    assert 128_256 * chunk_tokens(128_256) * 4 <= 2**29
    assert chunk_tokens(128_256) == 1024
