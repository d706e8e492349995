//! `MTLTextureDescriptor`: the properties of a new texture.

use std::sync::{Mutex, PoisonError};

use crate::bytes::Mode;
use crate::runtime::{Bool, ClassReceiver, Id, Method, New, Receiver, Ref};

/// The properties, which clients may set until they have the texture made.
#[derive(Debug)]
pub(crate) struct Descriptor(Mutex<Properties>);

/// Of those that `MTLTextureDescriptor` has, the ones that bear on bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Properties {
    /// `MTLTextureType`
    pub(crate) texture_type: usize,
    /// `MTLPixelFormat`
    pub(crate) format: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) levels: usize,
    pub(crate) samples: usize,
    pub(crate) array: usize,
    /// `MTLResourceOptions`
    pub(crate) options: usize,
    /// `MTLTextureUsage`
    pub(crate) usage: usize,
}

class!(c"MTLTextureDescriptor" "_OBJC_CLASS_MTLTextureDescriptor", Descriptor, methods, class_methods);

impl Default for Properties {
    /// As documented property by property.
    fn default() -> Self {
        Self {
            texture_type: TYPE_2D,
            format: RGBA8_UNORM,
            width: 1,
            height: 1,
            depth: 1,
            levels: 1,
            samples: 1,
            array: 1,
            options: 0,
            usage: SHADER_READ,
        }
    }
}

impl Descriptor {
    fn new(properties: Properties) -> Self {
        Self(Mutex::new(properties))
    }

    pub(crate) fn get(&self) -> Properties {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut Properties)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

macro_rules! properties {
    ($($get:literal $set:literal $field:ident;)*) => {{
        let mut methods = Vec::new();
        $(
            methods.extend(methods![Receiver<Descriptor>;
                $get => fn(this) -> usize {
                    this.get().$field
                }
                $set => fn(this, value: usize) {
                    this.set(|properties| properties.$field = value);
                }
            ]);
        )*
        methods
    }};
}

fn methods() -> Vec<Method> {
    let mut methods = properties! {
        c"textureType" c"setTextureType:" texture_type;
        c"pixelFormat" c"setPixelFormat:" format;
        c"width" c"setWidth:" width;
        c"height" c"setHeight:" height;
        c"depth" c"setDepth:" depth;
        c"mipmapLevelCount" c"setMipmapLevelCount:" levels;
        c"sampleCount" c"setSampleCount:" samples;
        c"arrayLength" c"setArrayLength:" array;
        c"resourceOptions" c"setResourceOptions:" options;
        c"usage" c"setUsage:" usage;
    };
    methods.extend(methods![Receiver<Descriptor>;
        c"storageMode" => fn(this) -> usize {
            (this.get().options >> 4) & 0xf
        }
        c"setStorageMode:" => fn(this, mode: usize) {
            this.set(|properties| properties.options = properties.options & !0xf0 | mode << 4);
        }
        c"cpuCacheMode" => fn(this) -> usize {
            this.get().options & 0xf
        }
        c"setCpuCacheMode:" => fn(this, mode: usize) {
            this.set(|properties| properties.options = properties.options & !0xf | mode);
        }
    ]);
    methods.extend(methods![New;
        c"init" => fn(this) -> Id {
            this.hold(Descriptor::new(Properties::default()))
        }
    ]);
    methods
}

fn class_methods() -> Vec<Method> {
    methods![ClassReceiver;
        c"texture2DDescriptorWithPixelFormat:width:height:mipmapped:" => fn(
            _class, format: usize, width: usize, height: usize, mipmapped: Bool
        ) -> Id {
            let levels = if mipmapped == 0 { 1 } else { width.max(height).max(1).ilog2() as usize + 1 };
            let properties = Properties { format, width, height, levels, ..Properties::default() };
            Ref::new(Descriptor::new(properties)).autoreleased()
        }
    ]
}

/// Bytes of a texel; `None` of formats that are packed in blocks, and of those that no client has
/// needed.
pub(crate) fn texel_bytes(format: usize) -> Option<usize> {
    Some(match format {
        1 | 10..=14 => 1,
        20..=25 | 30..=34 => 2,
        53..=55 | 60..=65 | RGBA8_UNORM..=74 | 80 | 81 | 90..=94 => 4,
        103..=105 | 110..=115 => 8,
        123..=125 => 16,
        _ => return None,
    })
}

impl Properties {
    pub(crate) fn mode(&self) -> Option<Mode> {
        Mode::in_options(self.options)
    }
}

pub(crate) const TYPE_1D: usize = 0;
pub(crate) const TYPE_2D: usize = 2;
pub(crate) const TYPE_2D_ARRAY: usize = 3;
pub(crate) const TYPE_3D: usize = 7;
const RGBA8_UNORM: usize = 70;
const SHADER_READ: usize = 1;
