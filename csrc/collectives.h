#pragma once

namespace webgpu {

// Makes the ops of torch.distributed (c10d) take the device's tensors; once.
void register_collectives();

}  // namespace webgpu
