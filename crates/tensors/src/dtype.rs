//! The types of a tensor's elements.

use std::fmt;

use transload::Element;

macro_rules! dtypes {
    ($($(#[$about:meta])* $name:ident $elements:literal / $bytes:literal),* $(,)?) => {
        /// The type of a tensor's elements, named as its file spells it.
        ///
        /// Those up to [`DType::U64`] are the types of safetensors 0.8, and the others those of GGUF alone, by ggml's names.
        /// Quantised types have blocks of elements that share a scale; the library moves their bytes and does not look
        /// inside.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum DType {
            $($(#[$about])* $name,)*
            /// A type that this version does not know. Its tensors are listed, and not loaded.
            Unknown(UnknownDType),
        }

        impl DType {
            /// Every type that is known.
            pub const ALL: &[DType] = &[$(DType::$name,)*];

            /// Returns the name, as files spell it: `BF16`, `Q4_K`; of a type of GGUF that is not known, `GGML_` and its
            /// number in ggml.
            pub fn name(&self) -> &str {
                match self {
                    $(DType::$name => stringify!($name),)*
                    DType::Unknown(of) => of.name(),
                }
            }

            /// Returns the least number of elements that fill whole bytes, or the block of a quantised type, and how many
            /// bytes they take: (1, 4) for `F32`, (2, 1) for `F4`, (32, 18) for `Q4_0`; (1, 0) for a type that is not known.
            pub const fn block(self) -> (u64, u64) {
                match self {
                    $(DType::$name => ($elements, $bytes),)*
                    DType::Unknown(_) => (1, 0),
                }
            }
        }
    };
}

// Sources: crate safetensors 0.8.0, `Dtype::bitsize`; ggml d99724f2 of 21 August 2026, `type_traits`, whose blocks are the
// structures of `ggml-common.h`. PyPI gguf 0.19.0 has 40 bytes for `Q8_1`, which was a mistake (llama.cpp's pull request 29036).
dtypes! {
    /// A boolean in a byte.
    BOOL 1/1,
    /// A float of 4 bits, two in a byte (OCP MX, E2M1).
    F4 2/1,
    /// A float of 6 bits, four in three bytes (OCP MX).
    F6_E2M3 4/3,
    /// A float of 6 bits, four in three bytes (OCP MX).
    F6_E3M2 4/3,
    U8 1/1,
    I8 1/1,
    F8_E5M2 1/1,
    F8_E4M3 1/1,
    /// A power of two, the scale of a block (OCP MX).
    F8_E8M0 1/1,
    F8_E4M3FNUZ 1/1,
    F8_E5M2FNUZ 1/1,
    I16 1/2,
    U16 1/2,
    F16 1/2,
    BF16 1/2,
    I32 1/4,
    U32 1/4,
    F32 1/4,
    /// A complex number of two `F32`.
    C64 1/8,
    F64 1/8,
    I64 1/8,
    U64 1/8,
    Q4_0 32/18,
    Q4_1 32/20,
    Q5_0 32/22,
    Q5_1 32/24,
    Q8_0 32/34,
    Q8_1 32/36,
    Q2_K 256/84,
    Q3_K 256/110,
    Q4_K 256/144,
    Q5_K 256/176,
    Q6_K 256/210,
    Q8_K 256/292,
    IQ2_XXS 256/66,
    IQ2_XS 256/74,
    IQ3_XXS 256/98,
    IQ1_S 256/50,
    IQ4_NL 32/18,
    IQ3_S 256/110,
    IQ2_S 256/82,
    IQ4_XS 256/136,
    IQ1_M 256/56,
    TQ1_0 256/54,
    TQ2_0 256/66,
    MXFP4 32/17,
    NVFP4 64/36,
    Q1_0 128/18,
    Q2_0 64/18,
}

impl DType {
    /// Returns the type that safetensors files spell so; `None` where that is no name of a type.
    pub(crate) fn of_safetensors(name: &str) -> Option<DType> {
        let mut own = DType::ALL.iter().copied().filter(|of| *of <= DType::U64);
        let known = own.find(|of| of.name() == name);
        known.or_else(|| UnknownDType::new(name).map(DType::Unknown))
    }

    /// Returns the type of that number in ggml. Types that ggml has removed, 31 to 33 and 36 to 38, are not known: their rows
    /// were interleaved, so that slices of them would be of other rows.
    pub(crate) fn of_ggml(number: u32) -> DType {
        match number {
            0 => DType::F32,
            1 => DType::F16,
            2 => DType::Q4_0,
            3 => DType::Q4_1,
            6 => DType::Q5_0,
            7 => DType::Q5_1,
            8 => DType::Q8_0,
            9 => DType::Q8_1,
            10 => DType::Q2_K,
            11 => DType::Q3_K,
            12 => DType::Q4_K,
            13 => DType::Q5_K,
            14 => DType::Q6_K,
            15 => DType::Q8_K,
            16 => DType::IQ2_XXS,
            17 => DType::IQ2_XS,
            18 => DType::IQ3_XXS,
            19 => DType::IQ1_S,
            20 => DType::IQ4_NL,
            21 => DType::IQ3_S,
            22 => DType::IQ2_S,
            23 => DType::IQ4_XS,
            24 => DType::I8,
            25 => DType::I16,
            26 => DType::I32,
            27 => DType::I64,
            28 => DType::F64,
            29 => DType::IQ1_M,
            30 => DType::BF16,
            34 => DType::TQ1_0,
            35 => DType::TQ2_0,
            39 => DType::MXFP4,
            40 => DType::NVFP4,
            41 => DType::Q1_0,
            42 => DType::Q2_0,
            _ => match UnknownDType::new(&format!("GGML_{number}")) {
                Some(unknown) => DType::Unknown(unknown),
                None => unreachable!("the name has 15 letters at most"),
            },
        }
    }

    /// Returns whether its elements are numbers with fractions, quantised ones included.
    pub fn is_float(self) -> bool {
        !matches!(
            self,
            DType::BOOL
                | DType::U8
                | DType::I8
                | DType::U16
                | DType::I16
                | DType::U32
                | DType::I32
                | DType::U64
                | DType::I64
                | DType::C64
                | DType::Unknown(_)
        )
    }

    /// Returns the form of its numbers, for types that are [converted](transload::Conversion).
    pub fn element(self) -> Option<Element> {
        Some(match self {
            DType::F64 => Element::F64,
            DType::F32 => Element::F32,
            DType::F16 => Element::F16,
            DType::BF16 => Element::BF16,
            DType::F8_E4M3 => Element::F8E4M3,
            DType::F8_E5M2 => Element::F8E5M2,
            _ => return None,
        })
    }

    /// Returns how many bytes a tensor of that shape has; `None` where they are no whole blocks, or more than 2⁶⁴, and for a
    /// type that is not known. A tensor without dimensions has one element.
    pub fn len_bytes(self, shape: &[u64]) -> Option<u64> {
        let mut sizes = shape.iter();
        if sizes.clone().any(|size| *size == 0) {
            return Some(0);
        }
        if matches!(self, DType::Unknown(_)) {
            return None;
        }
        let elements = sizes.try_fold(1u64, |product, size| product.checked_mul(*size))?;
        let (of_block, bytes) = self.block();
        let blocks = (elements % of_block == 0).then_some(elements / of_block)?;
        blocks.checked_mul(bytes)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name of a type that this version does not know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnknownDType {
    /// Zeros follow the name.
    bytes: [u8; UnknownDType::MOST_BYTES],
}

impl UnknownDType {
    /// The longest name of a type that is known has 11 bytes, and the longest number of ggml 10.
    const MOST_BYTES: usize = 15;

    /// Makes it of a name of printable ASCII without blanks; `None` of another one.
    fn new(name: &str) -> Option<UnknownDType> {
        let fits = (1..=UnknownDType::MOST_BYTES).contains(&name.len());
        if !fits || !name.bytes().all(|of| of.is_ascii_graphic()) {
            return None;
        }
        let mut bytes = [0; UnknownDType::MOST_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(UnknownDType { bytes })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        // Only ASCII passes `new`.
        let text = std::str::from_utf8(&self.bytes).unwrap_or_default();
        text.trim_end_matches('\0')
    }
}

impl fmt::Debug for UnknownDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_of_no_whole_blocks_or_of_too_many_has_no_length() {
        assert_eq!(DType::F4.len_bytes(&[3]), None);
        assert_eq!(DType::F4.len_bytes(&[3, 2]), Some(3));
        assert_eq!(DType::F6_E2M3.len_bytes(&[4]), Some(3));
        assert_eq!(DType::Q4_K.len_bytes(&[2, 256]), Some(288));
        assert_eq!(DType::F32.len_bytes(&[]), Some(4));
        assert_eq!(DType::U8.len_bytes(&[u64::MAX]), Some(u64::MAX));
        assert_eq!(DType::U16.len_bytes(&[u64::MAX]), None);
        assert_eq!(DType::U8.len_bytes(&[1 << 32, 1 << 32]), None);
        assert_eq!(DType::U8.len_bytes(&[1 << 32, 1 << 32, 0]), Some(0));
        let unknown = DType::of_ggml(u32::MAX);
        assert_eq!(unknown.to_string(), "GGML_4294967295");
        assert_eq!(unknown.len_bytes(&[0]), Some(0));
        assert_eq!(unknown.len_bytes(&[1]), None);
    }

    /// The numbers and blocks that writers have taken for others: `Q8_1` of 40 bytes, `Q2_0` of 128 elements.
    #[test]
    fn blocks_are_those_of_ggml() {
        assert_eq!(DType::of_ggml(9).block(), (32, 36));
        assert_eq!(DType::of_ggml(42), DType::Q2_0);
        assert_eq!(DType::Q2_0.block(), (64, 18));
        for removed in [4, 5, 31, 32, 33, 36, 37, 38, 43] {
            assert!(matches!(DType::of_ggml(removed), DType::Unknown(_)));
        }
    }

    #[test]
    fn no_two_types_have_one_name() {
        for (at, of) in DType::ALL.iter().enumerate() {
            assert!(
                DType::ALL[..at]
                    .iter()
                    .all(|other| other.name() != of.name()),
                "{of}"
            );
        }
        assert_eq!(DType::of_safetensors("BF16"), Some(DType::BF16));
        // Only GGUF has it.
        let foreign = DType::of_safetensors("Q4_0").unwrap();
        assert_ne!(foreign, DType::Q4_0);
        assert!(foreign > DType::U64);
        for none in ["", "F 32", "a_type_of_16_let"] {
            assert_eq!(DType::of_safetensors(none), None);
        }
    }
}
