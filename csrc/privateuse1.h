#pragma once

namespace webgpu {

// Makes torch.accelerator, storages and generators know the device.
void register_hooks();

}  // namespace webgpu
