"""Which of the paper's networks a dataset gets: convolutions where there are pictures, MLPs otherwise."""

from typing import cast

from torch import nn

from cru.layers.decoders import ConvDecoder, mlp_decoder, tanh_decoder
from cru.layers.encoders import ConvEncoder, MLPEncoder, features_of
from cru.models.base import Spec

IMAGE_STATE, VECTOR_STATE = 30, 20  # M of the pendulum and of PhysioNet; USHCN has 10


def default_state_size(spec: Spec) -> int:
    """M, where nothing else is asked for."""
    return IMAGE_STATE if spec.is_image else VECTOR_STATE


def default_variance_map(spec: Spec) -> str:
    """How encoder and decoder variances become positive in the paper: elu+1 for the pendulum, square otherwise."""
    return "elu+1" if spec.is_image else "square"


def make_encoder(spec: Spec) -> nn.Module:
    """From (n, *input) to (n, features)."""
    if spec.is_image:
        return ConvEncoder(cast(tuple[int, int, int], spec.input_shape), norm=len(spec.target_shape) == 3)
    return MLPEncoder(spec.input_size)


def latent_encoder(spec: Spec) -> nn.Module:
    """Pictures become latent observations, as many as the CRU has; features stay what they are."""
    if not spec.is_image:
        return nn.Flatten()
    encoder = make_encoder(spec)
    return nn.Sequential(encoder, nn.Linear(features_of(encoder, spec.input_shape), IMAGE_STATE // 2))


def make_decoder(spec: Spec, input_size: int) -> nn.Module:
    """From (n, state) to the raw mean of the target."""
    if len(spec.target_shape) == 3:
        if spec.target_shape != ConvDecoder.output_shape:
            raise ValueError(
                f"the convolutional decoder makes pictures of {ConvDecoder.output_shape}, the targets are "
                f"{spec.target_shape}: pass a `decoder` of your own."
            )
        return ConvDecoder(input_size)
    return tanh_decoder(input_size, spec.target_size) if spec.is_image else mlp_decoder(input_size, spec.target_size)


def make_variance_decoder(spec: Spec, input_size: int) -> nn.Module:
    """From (n, spread) to the raw variance of the target."""
    if spec.is_image:
        return tanh_decoder(input_size, spec.target_size)
    return mlp_decoder(input_size, spec.target_size, (50,))
