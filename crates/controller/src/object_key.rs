//! The namespace and name of an object: its identity among the objects of its kind.

use kube::Resource;
use kube::runtime::reflector::ObjectRef;

/// The namespace and name of a namespaced object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectKey {
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// `None` for an object without namespace or name, which no API server delivers of a namespaced kind.
    pub fn of(object: &impl Resource) -> Option<Self> {
        let meta = object.meta();
        Some(Self::new(meta.namespace.clone()?, meta.name.clone()?))
    }

    /// The key of an object that is not being deleted.
    pub fn of_existing(object: &impl Resource) -> Option<Self> {
        Self::of(object).filter(|_| object.meta().deletion_timestamp.is_none())
    }

    pub fn to_ref<K: Resource<DynamicType = ()>>(&self) -> ObjectRef<K> {
        ObjectRef::new(&self.name).within(&self.namespace)
    }
}
