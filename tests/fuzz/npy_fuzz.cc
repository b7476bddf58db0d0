// SPDX-License-Identifier: Apache-2.0
// .npy files: as they are, and as the header of a file that is right otherwise.
#include "normjit/base/text.h"
#include "tests/fuzz/fuzz.h"
#include "verify/npy.h"

using namespace normjit;
using namespace normjit::oracle;

namespace {

constexpr std::int64_t kMostBytes = 65536;

std::int64_t elements_of(const NpyHeader& header) {
  std::int64_t elements = 1;
  for (const std::int64_t size : header.shape) elements *= size;
  return elements;
}

void read(NpyFile& file) {
  const std::int64_t elements = file.elements();
  fuzz::expect(elements >= 0, "a shape has elements");
  const Result<std::int64_t> rows = file.rows_of(3);
  if (!rows) fuzz::expect_message(rows.error().message);
  if (rows) fuzz::expect(*rows * 3 == elements || elements == 0, "rows are those of the shape");
  Matrix all(file.dtype(), 1, elements);
  const Result<void> done = file.read(all);
  fuzz::expect(done.ok(), "a whole file can be read", done.error().message);
}

void open(std::string_view bytes, const NpyHeader* expected = nullptr) {
  const fuzz::MemoryFile memory(bytes);
  Result<NpyFile> file = NpyFile::open(memory.path());
  if (!file) fuzz::expect_message(file.error().message);
  if (file) read(*file);
  if (expected)
    fuzz::expect(file.ok() && file->dtype() == expected->dtype && file->shape() == expected->shape,
                 "a file with this header can be read");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  open(input);

  const Result<NpyHeader> header = parse_npy_header(input);
  if (!header) {
    fuzz::expect_message(header.error().message);
    return 0;
  }
  const std::string text = npy_header_text(header->dtype, header->shape);
  const Result<NpyHeader> again = parse_npy_header(text);
  fuzz::expect(again.ok() && again->dtype == header->dtype && again->shape == header->shape,
               "a header reads back", text);
  if (const std::int64_t elements = elements_of(*header); size <= kMostBytes && elements <= kMostBytes / 8) {
    std::string file("\x93NUMPY\x02\x00", 8);
    for (int i = 0; i < 4; ++i) file += static_cast<char>(size >> 8 * i & 0xff);
    file += input;
    file.append(static_cast<std::size_t>(elements * size_of(header->dtype)), '\0');
    open(file, &*header);
  }
  return 0;
}
