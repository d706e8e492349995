//! The types of elements that DLPack has, too.

use super::DLPackError;
use super::abi::DLDataType;
use crate::DType;

/// Source: dlpack.h 1.3, `DLDataTypeCode`. Types of fewer than 8 bits are packed, as in safetensors.
const TYPES: [(DType, u8, u8); 22] = [
    (DType::I8, 0, 8),
    (DType::I16, 0, 16),
    (DType::I32, 0, 32),
    (DType::I64, 0, 64),
    (DType::U8, 1, 8),
    (DType::U16, 1, 16),
    (DType::U32, 1, 32),
    (DType::U64, 1, 64),
    (DType::F16, 2, 16),
    (DType::F32, 2, 32),
    (DType::F64, 2, 64),
    (DType::BF16, 4, 16),
    (DType::C64, 5, 64),
    (DType::BOOL, 6, 8),
    // The type of safetensors has no infinities (crate safetensors 0.8.0, `Dtype::F8_E4M3`): `kDLFloat8_e4m3fn`.
    (DType::F8_E4M3, 10, 8),
    (DType::F8_E4M3FNUZ, 11, 8),
    (DType::F8_E5M2, 12, 8),
    (DType::F8_E5M2FNUZ, 13, 8),
    (DType::F8_E8M0, 14, 8),
    (DType::F6_E2M3, 15, 6),
    (DType::F6_E3M2, 16, 6),
    (DType::F4, 17, 4),
];

/// Returns what DLPack calls a type.
pub(super) fn of(dtype: DType) -> Result<DLDataType, DLPackError> {
    let mut known = TYPES.iter().filter(|(own, ..)| *own == dtype);
    let (_, code, bits) = *known.next().ok_or(DLPackError::DType { dtype })?;
    let lanes = 1;
    Ok(DLDataType { code, bits, lanes })
}

/// Returns the type that DLPack calls so, whose elements may be packed one by one or as lanes.
pub(super) fn known(of: DLDataType) -> Result<DType, DLPackError> {
    let mut known = TYPES.iter().filter(|(own, code, bits)| {
        let is_packed = u64::from(of.lanes) == own.block().0;
        (of.code, of.bits) == (*code, *bits) && (of.lanes == 1 || is_packed)
    });
    let found = known.next().map(|(own, ..)| *own);
    found.ok_or(DLPackError::DataType(of))
}
