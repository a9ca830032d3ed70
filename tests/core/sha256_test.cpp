// SHA-256 against the vectors of FIPS 180-4 and NIST's examples, and against itself in pieces of every size around a
// block.
#include "core/sha256.h"

#include <gtest/gtest.h>

namespace sextant {
namespace {

TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqr"
                       "smnopqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesOfEverySizeGiveTheSame) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (size_t length = 0; length <= text.size(); ++length) {
    Sha256 pieces;
    for (size_t i = 0; i < length;) {
      const size_t piece = std::min(length - i, 1 + (i * 31 + length) % 70);
      pieces.update(std::string_view(text).substr(i, piece));
      i += piece;
    }
    ASSERT_EQ(pieces.hex(), sha256_hex(std::string_view(text).substr(0, length))) << length;
  }
}

TEST(Sha256, DigestMayBeAskedOnTheWay) {
  Sha256 hash;
  hash.update("ab");
  EXPECT_EQ(hash.hex(), sha256_hex("ab"));
  hash.update("c");
  EXPECT_EQ(hash.hex(), sha256_hex("abc"));
}

}  // namespace
}  // namespace sextant
