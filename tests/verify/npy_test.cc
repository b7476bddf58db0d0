// SPDX-License-Identifier: Apache-2.0
#include "verify/npy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "normjit/base/text.h"
#include "tests/support/temp_directory.h"
#include "verify/element.h"

namespace normjit::oracle {
namespace {

class Npy : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_ / name; }

  // A file of format version 1.0 with this header text and data.
  std::string file(const std::string& header, const std::string& data, char version = 1) {
    const std::string path = this->path("x.npy");
    std::ofstream out(path, std::ios::binary);
    out << "\x93NUMPY" << version << '\0' << static_cast<char>(header.size() & 0xff)
        << static_cast<char>(header.size() >> 8);
    if (version == 2) out << '\0' << '\0';
    out << header << data;
    return path;
  }

  std::string error_of(const std::string& path) {
    const Result<NpyFile> file = NpyFile::open(path);
    EXPECT_FALSE(file.ok());
    if (file) return "";
    EXPECT_EQ(file.code(), Code::BadArgument);
    EXPECT_NE(file.error().message.find(path), std::string::npos) << "names the file";
    return file.error().message;
  }

  TempDirectory directory_;
};

TEST_F(Npy, RoundTripsEveryDType) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64, DType::e4m3, DType::s8}) {
    Matrix written(dtype, 3, 5);
    fill_random(written, 7, {1, 0, 1});
    write_npy(path("a.npy"), written, {3, 5}).value();

    NpyFile file = NpyFile::open(path("a.npy")).value();
    EXPECT_EQ(file.dtype(), dtype);
    EXPECT_EQ(file.shape(), (std::vector<std::int64_t>{3, 5}));
    Matrix read(dtype, 3, 5);
    file.read(read).value();
    EXPECT_EQ(std::memcmp(read.data(), written.data(), written.bytes()), 0) << name(dtype);
  }
}

TEST_F(Npy, EightBitsAreBitPatterns) {
  EXPECT_EQ(npy_type(DType::e4m3), "|u1");
  EXPECT_EQ(npy_type(DType::e5m2), "|u1");
  EXPECT_EQ(npy_type(DType::e8m0), "|u1");
  EXPECT_EQ(npy_type(DType::e2m1), "|u1");
  EXPECT_EQ(npy_type(DType::s8), "|i1");
  Matrix written(DType::e5m2, 2, 3);
  fill_random(written, 7, {1, 0, 1});
  write_npy(path("e.npy"), written, {2, 3}).value();
  Matrix read(DType::e5m2, 2, 3);
  NpyFile::open(path("e.npy")).value().read(read).value();
  EXPECT_EQ(std::memcmp(read.data(), written.data(), written.bytes()), 0);
  Matrix other(DType::s8, 2, 3);
  EXPECT_EQ(NpyFile::open(path("e.npy")).value().read(other).code(), Code::BadArgument);
}

TEST_F(Npy, ScalesOfBlocksHaveTheShapeOfTheirLayout) {
  for (const char* const text : {"q=64", "q=64:cols", "q=16:e4m3:cols", "q=64:e8m0:cols4", "q=32:e8m0:sw"}) {
    const NormSpec spec = parse_spec(concat({"rmsnorm/cols=320/bf16/out=e4m3/", text})).value();
    const std::vector<std::int64_t> shape = block_scale_shape(spec, 6).value();
    Problem problem = make_problem(spec, 6).value();
    Matrix &written = problem[Operand::block_scale], read(written.dtype(), written.rows(), written.columns());
    fill_random(written, 7, {1, 3, 1});
    write_npy(path("s.npy"), written, shape).value();
    NpyFile file = NpyFile::open(path("s.npy")).value();
    EXPECT_EQ(file.shape(), shape) << text;
    EXPECT_EQ(npy_type(file.dtype()), written.dtype() == DType::f32 ? "<f4" : "|u1") << text;
    file.read(read).value();
    EXPECT_EQ(std::memcmp(read.data(), written.data(), written.bytes()), 0) << text;
  }
}

TEST_F(Npy, GapsBetweenRowsAreNotInTheFile) {
  Matrix strided(DType::f32, 3, 4, 10);
  fill_random(strided, 1, {1, 0, 1});
  write_npy(path("a.npy"), strided, {3, 4}).value();
  Matrix dense(DType::f32, 3, 4);
  NpyFile::open(path("a.npy")).value().read(dense).value();
  Matrix again(DType::f32, 3, 4, 6);
  NpyFile::open(path("a.npy")).value().read(again).value();
  for (int row = 0; row < 3; ++row) {
    EXPECT_EQ(std::memcmp(dense.row(row), strided.row(row), dense.row_bytes()), 0);
    EXPECT_EQ(std::memcmp(again.row(row), strided.row(row), dense.row_bytes()), 0);
  }
}

TEST_F(Npy, DataBeginsAtAMultipleOf64) {
  Matrix matrix(DType::f64, 1, 1);
  const double one = 1;
  store(DType::f64, matrix.data(), 0, 1, &one);
  write_npy(path("a.npy"), matrix, {1}).value();
  std::ifstream in(path("a.npy"), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  ASSERT_EQ(bytes.size() % 64, 8u);
  EXPECT_EQ(bytes[bytes.size() - 9], '\n');
}

TEST_F(Npy, ReadsVersion2AndKeysInAnyOrder) {
  NpyFile file = NpyFile::open(this->file("{\"shape\": (2,), 'descr':'<f4','fortran_order' : False}\n",
                                          std::string("\0\0\x80\x3f\0\0\0\x40", 8), 2))
                     .value();
  Matrix matrix(DType::f32, 1, 2);
  file.read(matrix).value();
  double values[2];
  load(DType::f32, matrix.data(), 0, 2, values);
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 2);
}

TEST_F(Npy, RowsComeFromTheLeadingDimensions) {
  const NpyFile file =
      NpyFile::open(
          this->file("{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3, 4), }", std::string(48, 'x')))
          .value();
  EXPECT_EQ(file.rows_of(4).value(), 6);
  EXPECT_EQ(file.rows_of(12).value(), 2);
  EXPECT_EQ(file.rows_of(24).value(), 1);
  EXPECT_EQ(file.rows_of(1).value(), 24);
  EXPECT_EQ(file.rows_of(6).code(), Code::BadArgument);
  EXPECT_NE(file.rows_of(8).error().message.find("(2, 3, 4)"), std::string::npos);
}

TEST_F(Npy, NoRowsAreRows) {
  const NpyFile file =
      NpyFile::open(this->file("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4), }", "")).value();
  EXPECT_EQ(file.rows_of(4).value(), 0);
}

TEST_F(Npy, WrongDTypeOrSizeForTheMatrix) {
  const std::string path =
      file("{'descr': '<f2', 'fortran_order': False, 'shape': (4,), }", std::string(8, 'x'));
  Matrix wide(DType::f32, 1, 4);
  EXPECT_NE(NpyFile::open(path).value().read(wide).error().message.find("<f2"), std::string::npos);
  Matrix longer(DType::f16, 1, 5);
  EXPECT_EQ(NpyFile::open(path).value().read(longer).code(), Code::BadArgument);
}

TEST_F(Npy, MalformedFiles) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
  EXPECT_NE(error_of(path("absent.npy")).find("No such file"), std::string::npos);
  EXPECT_NE(error_of(file(good, "1234567")).find("7 bytes"), std::string::npos);
  EXPECT_NE(error_of(file(good, "123456789")).find("needs 8"), std::string::npos);
  EXPECT_NE(error_of(file(good, "12345678", 3)).find("version 3.0"), std::string::npos);
  EXPECT_NE(
      error_of(file("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }", "12345678")).find(">f4"),
      std::string::npos);
  EXPECT_NE(
      error_of(file("{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }", "12345678")).find("Fortran"),
      std::string::npos);
  for (const char* header :
       {"", "[]", "{", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}"}) {
    EXPECT_NE(error_of(file(header, "12345678")), "") << header;
  }
  std::ofstream(path("short.npy")) << "\x93NUM";
  EXPECT_NE(error_of(path("short.npy")).find("not a .npy"), std::string::npos);
  std::ofstream(path("text.npy")) << "some text file";
  EXPECT_NE(error_of(path("text.npy")).find("not a .npy"), std::string::npos);
}

TEST_F(Npy, AFifoIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_NE(error_of(path("fifo")).find("must be a regular file"), std::string::npos);
  EXPECT_NE(error_of("/dev/zero").find("must be a regular file"), std::string::npos);
}

TEST_F(Npy, HeadersAreQuotedWithoutControlCharacters) {
  using namespace std::string_literals;
  const std::string type =
      error_of(file("{'descr': '\x1b[31m\0\n', 'fortran_order': False, 'shape': (2,)}"s, "12345678"));
  EXPECT_NE(type.find(R"('\x1b[31m\x00\n')"), std::string::npos) << type;
  const std::string key = error_of(file("{'" + std::string(9000, 'k') + "': 1}", "12345678"));
  EXPECT_LT(key.size(), 500u);
}

TEST_F(Npy, LongShapesMakeShortMessages) {
  const auto header = [](int dimensions, const std::string& size) {
    std::string shape;
    for (int i = 0; i < dimensions; ++i) shape += size + ", ";
    return "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + ")}";
  };
  EXPECT_NE(error_of(file(header(65, "1"), "1234")).find("64 dimensions"), std::string::npos);
  EXPECT_LT(error_of(file(header(64, "999999999999999999"), "")).size(), 500u);
  const std::string path = file(header(64, "0"), "");
  Matrix matrix(DType::f32, 1, 1);
  EXPECT_LT(NpyFile::open(path).value().rows_of(7).error().message.size(), 500u);
  EXPECT_LT(NpyFile::open(path).value().read(matrix).error().message.size(), 500u);
}

TEST_F(Npy, EveryTruncationIsAnError) {
  const std::string whole = file("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "12345678");
  std::ifstream in(whole, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    std::ofstream(path("cut.npy"), std::ios::binary) << bytes.substr(0, size);
    EXPECT_NE(error_of(path("cut.npy")), "") << size;
  }
}

TEST_F(Npy, UnwritablePathIsAnError) {
  EXPECT_EQ(write_npy(path("no/such/directory.npy"), Matrix(DType::f32, 1, 1), {1}).code(), Code::CacheIo);
}

TEST(NpyHeader, ShapesAsPythonPrintsThem) {
  EXPECT_EQ(shape_text({}), "()");
  EXPECT_EQ(shape_text({2}), "(2,)");
  EXPECT_EQ(shape_text({2, 3}), "(2, 3)");
}

}  // namespace
}  // namespace normjit::oracle
