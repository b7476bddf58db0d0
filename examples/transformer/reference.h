// SPDX-License-Identifier: Apache-2.0
// The model once more, in float64 on the CPU, straight from its definition.
#pragma once

#include "model.h"

// [tokens, width] after the encoder.
std::vector<double> reference_encoder(const Shape& shape, const Weights<HostTensor>& weights,
                                      const HostTensor& tokens);
// [batch, z, y, x, 64] of these tokens.
std::vector<double> reference_decoder(const Shape& shape, const Weights<HostTensor>& weights,
                                      const std::vector<double>& tokens);
