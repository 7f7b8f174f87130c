"""A checkpoint of `transformers` with mean pooling, as other engines' converters take it."""

import torch


class Pooled(torch.nn.Module):
    """The encoder and the mean of its token vectors."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """[B, S] and [B, S] -> [B, D]."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled: torch.Tensor = (hidden * kept).sum(1) / kept.sum(1)
        return pooled
