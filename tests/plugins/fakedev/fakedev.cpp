// A device that torch does not know: PrivateUse1 under the name fakedev.
//
// Its memory is the host's and the CPU computes for it, but to its user it is an accelerator:
// a kernel is only enqueued and takes FAKEDEV_KERNEL_US of device time; waiting for that time is
// what synchronising and reading back do. Each device has a memory of its own, of FAKEDEV_MEMORY_MB;
// its allocator is a plain one, without statistics: torch cannot say how much is in use.
//
// FAKEDEV_DEFECTS, names with commas between them, takes something away:
//   no_float64, no_bfloat16   no tensor of the type can be made (MPS has no float64)
//   bf16_products             float32 matrices are multiplied in bfloat16, as on a TPU, until
//                             fakedev::full_products(True) asks for full products
//   noisy                     the order of summation of a product is drawn anew in each call
//   no_non_blocking           copies that do not wait are refused
//   no_strided                copies between device and host want contiguous tensors
//   slow_synchronize          waiting takes 20 ms more
// FAKEDEV_REFUSED_OPS, names with commas between them (aten::index.Tensor): no kernel for them.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {
using c10::Device, c10::DeviceIndex, c10::Stream;
using at::IntArrayRef, at::Tensor;

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kDevices = 2;
thread_local DeviceIndex current = 0;
thread_local bool in_kernel = false;  // then the operands' transfers are not the user's

struct InKernel {
  const bool before = std::exchange(in_kernel, true);
  ~InKernel() { in_kernel = before; }
};

int64_t setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}

bool listed(const char* variable, const std::string& name) {
  const char* text = std::getenv(variable);
  return text && ("," + std::string(text) + ",").find("," + name + ",") != std::string::npos;
}

bool has(const char* defect) { return listed("FAKEDEV_DEFECTS", defect); }

// -- device time ------------------------------------------------------------------------------

std::atomic<int64_t> busy_until_ns[kDevices];

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void enqueue(DeviceIndex device) {
  static const int64_t cost_ns = 1000 * setting("FAKEDEV_KERNEL_US", 0);
  int64_t before = busy_until_ns[device];
  while (!busy_until_ns[device].compare_exchange_weak(before, std::max(before, now_ns()) + cost_ns)) {
  }
}

void wait(DeviceIndex device) {
  static const bool slow = has("slow_synchronize");
  if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::this_thread::sleep_for(std::chrono::nanoseconds(busy_until_ns[device] - now_ns()));
}

// -- memory -----------------------------------------------------------------------------------

// Larger blocks do not count towards the limit: a limit at which a tiny model fits only at the
// smallest batch sizes would be none at which bandwidth can be measured.
constexpr size_t kLarge = 64 << 20;

struct Block {
  void* data;
  size_t bytes;
  DeviceIndex device;
};
std::atomic<int64_t> used[kDevices];

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block->bytes < kLarge) used[block->device] -= block->bytes;
  std::free(block->data);
  delete block;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    static const int64_t limit = setting("FAKEDEV_MEMORY_MB", 1 << 20) << 20;
    const DeviceIndex device = current;
    const int64_t wanted = used[device] += bytes < kLarge ? bytes : 0;
    auto* block = new Block{nullptr, bytes, device};
    c10::DataPtr pointer(nullptr, block, &release, Device(kType, device));
    TORCH_CHECK_WITH(OutOfMemoryError, wanted <= limit, "fakedev:", int(device), " is out of memory");
    TORCH_CHECK(posix_memalign(&block->data, 64, bytes) == 0, "the host has no memory left");
    pointer.release_context();
    return {block->data, block, &release, Device(kType, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
} memory;
REGISTER_ALLOCATOR(kType, &memory);

// -- runtime ----------------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  Device getDevice() const override { return {kType, current}; }
  void uncheckedSetDevice(Device device) const noexcept override { current = device.index(); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < kDevices, "there is no ", device);
    current = device.index();
  }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  Stream getStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return getStream(stream.device()); }
  bool queryStream(const Stream& stream) const override {
    return busy_until_ns[stream.device_index()] <= now_ns();
  }
  void synchronizeStream(const Stream& stream) const override { wait(stream.device_index()); }
  void synchronizeDevice(const DeviceIndex index) const override { wait(index); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override { Guard().setDevice({kType, index}); }
};
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

// -- operations -------------------------------------------------------------------------------

using Type = std::optional<at::ScalarType>;
using Format = std::optional<at::MemoryFormat>;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::ScalarType checked(Type type) {
  static const bool no_double = has("no_float64"), no_half = has("no_bfloat16");
  const auto dtype = c10::dtype_or_default(type);
  TORCH_CHECK_TYPE(!(no_double && dtype == at::kDouble), "Cannot convert a fakedev tensor to float64 dtype");
  TORCH_CHECK_TYPE(!(no_half && dtype == at::kBFloat16), "fakedev has no bfloat16");
  return dtype;
}

Tensor empty(IntArrayRef size, Type type, std::optional<at::Layout>, std::optional<Device> device,
             std::optional<bool>, Format format) {
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_generic(size, &memory, kKeys, checked(type), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, Type type, std::optional<at::Layout>,
                     std::optional<Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_strided_generic(size, stride, &memory, kKeys, checked(type));
}

const Tensor& resize_(const Tensor& self, IntArrayRef size, Format) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_sizes_contiguous(size);
  const size_t bytes = self.itemsize() * (self.numel() + self.storage_offset());
  const auto& storage = tensor->unsafe_storage();
  if (bytes > storage.nbytes()) {
    const c10::DeviceGuard guard(self.device());
    c10::DataPtr larger = memory.allocate(bytes);
    std::memcpy(larger.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(larger));
    storage.set_nbytes(bytes);
  }
  return self;
}

Tensor as_host(const Tensor& tensor) {  // the same bytes, as a tensor of the CPU
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU));
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  static const bool waits = has("no_non_blocking"), strict = has("no_strided");
  TORCH_CHECK(!(waits && non_blocking), "fakedev has no copies that do not wait");
  TORCH_CHECK(in_kernel || !strict || self.is_cpu() == target.is_cpu() ||
              (self.is_contiguous() && target.is_contiguous()), "fakedev copies contiguous tensors only");
  const Device device = self.is_cpu() ? target.device() : self.device();
  if (!in_kernel) {
    enqueue(device.index());
    if (target.is_cpu()) wait(device.index());
  }
  as_host(target).copy_(as_host(self));
  return target;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  resize_(target, self.sizes(), {});
  return copy_from(self, target, false);
}

std::atomic<bool> full_products = false;
const bool narrow = has("bf16_products"), noisy = has("noisy");

// Products: where their two matrices lie among the arguments.
int matrices_of(const std::string& op) {
  if (op == "aten::mm" || op == "aten::bmm") return 0;
  return op == "aten::addmm" || op == "aten::baddbmm" ? 1 : -1;
}

void spoil(torch::jit::Stack& stack, size_t count, int first) {
  auto& left = stack[stack.size() - count + first];
  auto& right = stack[stack.size() - count + first + 1];
  Tensor a = left.toTensor(), b = right.toTensor();
  if (narrow && !full_products && a.scalar_type() == at::kFloat) {
    a = a.cpu().to(at::kBFloat16).to(at::kFloat), b = b.cpu().to(at::kBFloat16).to(at::kFloat);
  }
  if (noisy && a.is_floating_point()) {
    static thread_local std::mt19937_64 draw{std::random_device{}()};
    std::vector<int64_t> order(a.size(-1));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), draw);
    const Tensor index = at::tensor(order, at::kLong);
    a = a.cpu().index_select(-1, index), b = b.cpu().index_select(-2, index);
  }
  const Device device = left.toTensor().device();
  left = a.to(device), right = b.to(device);
}

void kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const bool complete = std::getenv("FAKEDEV_REFUSED_OPS") == nullptr;
  const auto& name = op.schema().operator_name();
  if (!complete) {
    const std::string full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
    TORCH_CHECK_NOT_IMPLEMENTED(!listed("FAKEDEV_REFUSED_OPS", full), "fakedev has no kernel of ", full);
  }
  DeviceIndex device = current;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size()))
    for (const auto& tensor : value.isTensorList() ? value.toTensorVector()
                              : value.isTensor()   ? std::vector<Tensor>{value.toTensor()}
                                                   : std::vector<Tensor>{})
      if (tensor.defined() && tensor.is_privateuseone()) device = tensor.device().index();
  {
    const InKernel inside;
    if (const int first = narrow || noisy ? matrices_of(name.name) : -1; first >= 0)
      spoil(*stack, op.schema().arguments().size(), first);
    at::native::cpu_fallback(op, stack);
  }
  enqueue(device);
  if (name.name == "aten::_local_scalar_dense") wait(device);  // .item(): reads back
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("view", at::native::view);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&kernel>());
}
TORCH_LIBRARY(fakedev, m) {
  m.def("device_count", [] { return int64_t(kDevices); });
  m.def("full_products", [](bool full) { return full_products.exchange(full); });
}
}  // namespace
