//! Objects within JSON bodies.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

/// A structure that is read from a JSON object alone: without this, a list would be read as the values of its fields in
/// order.
pub(super) struct Object<T>(pub(super) T);

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = Object<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Named {
        name: String,
    }

    #[test]
    fn a_list_is_no_object() {
        let read = |json: &str| serde_json::from_str::<Object<Named>>(json).map(|read| read.0.name);
        assert_eq!(read(r#"{"name": "a", "other": 1}"#).expect("an object"), "a");
        let fault = read(r#"["a"]"#).expect_err("a list").to_string();
        assert!(fault.starts_with("invalid type: sequence, expected a JSON object"), "{fault}");
    }
}
