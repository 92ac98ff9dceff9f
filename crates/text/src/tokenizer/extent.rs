//! How large the parts of a `tokenizer.json` are, which are not built for that.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};

/// The parts of a file, by how large they are.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct File {
    pub(super) model: Extent,
    pub(super) added_tokens: Extent,
    pub(super) normalizer: Extent,
    pub(super) pre_tokenizer: Extent,
    pub(super) post_processor: Extent,
    pub(super) decoder: Extent,
}

/// How large a value of JSON is, which is not built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// Of all texts.
    pub(super) bytes: usize,
    /// Bytes of the longest text.
    pub(super) longest: usize,
    pub(super) objects: usize,
    /// All values, the keys of objects not counted.
    pub(super) values: usize,
}

impl Extent {
    /// Of one value that has no others.
    const ONE: Self = Self { bytes: 0, longest: 0, objects: 0, values: 1 };

    fn with(self, other: Self) -> Self {
        let (objects, values) = (self.objects + other.objects, self.values + other.values);
        let bytes = self.bytes.saturating_add(other.bytes);
        Self { bytes, longest: self.longest.max(other.longest), objects, values }
    }
}

impl<'de> Deserialize<'de> for Extent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ExtentVisitor)
    }
}

struct ExtentVisitor;

impl<'de> Visitor<'de> for ExtentVisitor {
    type Value = Extent;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Extent, E> {
        Ok(Extent::ONE)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Extent, E> {
        Ok(Extent::ONE)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Extent, E> {
        Ok(Extent::ONE)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Extent, E> {
        Ok(Extent::ONE)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Extent, E> {
        Ok(Extent::ONE)
    }

    fn visit_str<E>(self, text: &str) -> Result<Extent, E> {
        Ok(Extent { bytes: text.len(), longest: text.len(), ..Extent::ONE })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Extent, A::Error> {
        let mut all = Extent::ONE;
        while let Some(one) = list.next_element()? {
            all = all.with(one);
        }
        Ok(all)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Extent, A::Error> {
        let mut all = Extent { objects: 1, ..Extent::ONE };
        while let Some((key, value)) = map.next_entry::<Extent, Extent>()? {
            all = all.with(Extent { objects: 0, values: 0, ..key }).with(value);
        }
        Ok(all)
    }
}
