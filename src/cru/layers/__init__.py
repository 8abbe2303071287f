"""Layers: the CRU family, each a drop-in for `torch.nn.GRU` that also takes times."""

from cru.layers.banded import BandedBasis
from cru.layers.cru import CRU
from cru.layers.decoders import ConvDecoder, mlp_decoder, tanh_decoder
from cru.layers.encoders import ConvEncoder, MLPEncoder
from cru.layers.fast_cru import FastCRU
from cru.layers.filter import KalmanLayer
from cru.layers.paired import PairedCRU
from cru.layers.rkn import RKN
from cru.layers.structural import StructuralLayer

__all__ = [
    "CRU",
    "RKN",
    "BandedBasis",
    "ConvDecoder",
    "ConvEncoder",
    "FastCRU",
    "KalmanLayer",
    "MLPEncoder",
    "PairedCRU",
    "StructuralLayer",
    "mlp_decoder",
    "tanh_decoder",
]
