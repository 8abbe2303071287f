"""Layers of the CRU family, with the interface of `torch.nn.GRU` and times, and the networks of the paper."""

from cru.layers.cru import CRU, RKN, BandedBasis, FastCRU
from cru.layers.decoders import ConvDecoder, mlp_decoder, tanh_decoder
from cru.layers.encoders import ConvEncoder, MLPEncoder
from cru.layers.filter import KalmanLayer
from cru.layers.paired import PairedCRU
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
