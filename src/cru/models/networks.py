"""The networks of the paper for a dataset: convolutions for images, multilayer perceptrons (MLPs) otherwise."""

from typing import cast

from torch import nn

from cru.errors import InputError
from cru.layers.decoders import ConvDecoder, mlp_decoder, tanh_decoder
from cru.layers.encoders import ConvEncoder, MLPEncoder, features_of
from cru.models.base import Spec

IMAGE_STATE, VECTOR_STATE = 30, 20  # M of the pendulum and of PhysioNet; it is 10 for USHCN


def default_state_size(spec: Spec) -> int:
    """Return the default size M of the state."""
    return IMAGE_STATE if spec.is_image else VECTOR_STATE


def default_variance_map(spec: Spec) -> str:
    """Return the positive map of the encoder and decoder variances in the paper: elu+1 for images, else square."""
    return "elu+1" if spec.is_image else "square"


def make_encoder(spec: Spec) -> nn.Module:
    """Make the encoder from (n, *input) to (n, features)."""
    if spec.is_image:
        return ConvEncoder(cast(tuple[int, int, int], spec.input_shape), norm=len(spec.target_shape) == 3)
    return MLPEncoder(spec.input_size)


def latent_encoder(spec: Spec) -> nn.Module:
    """Make an encoder from images to as many latent observations as the CRU has. Features do not change."""
    if not spec.is_image:
        return nn.Flatten()
    encoder = make_encoder(spec)
    return nn.Sequential(encoder, nn.Linear(features_of(encoder, spec.input_shape), IMAGE_STATE // 2))


def make_decoder(spec: Spec, input_size: int) -> nn.Module:
    """Make the decoder from (n, state) to the raw mean of the target."""
    if len(spec.target_shape) == 3:
        if spec.target_shape != ConvDecoder.output_shape:
            rule, hint = f"be {ConvDecoder.output_shape} for the decoder of images", "Pass your own decoder."
            raise InputError("spec.target_shape", rule, spec.target_shape, hint)
        return ConvDecoder(input_size)
    return tanh_decoder(input_size, spec.target_size) if spec.is_image else mlp_decoder(input_size, spec.target_size)


def make_variance_decoder(spec: Spec, input_size: int) -> nn.Module:
    """Make the decoder from (n, spread) to the raw variance of the target."""
    if spec.is_image:
        return tanh_decoder(input_size, spec.target_size)
    return mlp_decoder(input_size, spec.target_size, (50,))
