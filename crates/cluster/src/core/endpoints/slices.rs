//! Distribution of endpoints over EndpointSlices with as few changed slices as possible.
//!
//! Input: desired endpoints with IP family and ports; existing slices. Output: slices to create,
//! update and delete.
//! Guarantees: an endpoint stays in its slice; a slice has at most [`MAX_ENDPOINTS_PER_SLICE`]
//! endpoints; a service without endpoints has one empty placeholder slice per IP family.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::pods::IpFamily;

/// Maximum number of endpoints per slice, as upstream.
pub(super) const MAX_ENDPOINTS_PER_SLICE: usize = 100;

/// An endpoint that a service should have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DesiredEndpoint {
    pub(super) family: IpFamily,
    pub(super) ports: Vec<EndpointPort>,
    pub(super) endpoint: Endpoint,
}

/// IP family and ports. Endpoints with equal keys share slices. Upstream: addrTypePortMapKey.
type PortMapKey = (IpFamily, Vec<String>);

/// The key does not depend on the order of the ports.
fn port_map_key(family: IpFamily, ports: &[EndpointPort]) -> PortMapKey {
    let mut ports: Vec<_> = ports.iter().map(|port| format!("{port:?}")).collect();
    ports.sort();
    (family, ports)
}

/// Slices to create, update and delete.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SliceChanges {
    pub(super) create: Vec<EndpointSlice>,
    pub(super) update: Vec<EndpointSlice>,
    pub(super) delete: Vec<EndpointSlice>,
}

/// Template of the slices of one service.
#[derive(Clone, Debug)]
pub(super) struct SliceTemplate {
    /// Metadata of new slices. The labels are also set on existing slices.
    pub(super) meta: ObjectMeta,
    /// IP families that have a placeholder slice if there are no endpoints.
    pub(super) families: Vec<IpFamily>,
}

/// Identity of an endpoint, independent of its conditions. Mirrors hashEndpoint.
fn endpoint_identity(endpoint: &Endpoint) -> String {
    let uid = endpoint
        .target_ref
        .as_ref()
        .and_then(|target| target.uid.as_deref())
        .unwrap_or_default();
    format!("{uid} {}", endpoint.addresses.join(" "))
}

/// The changes from the existing slices to the desired endpoints. Mirrors reconcileByAddressType.
pub(super) fn plan(
    template: &SliceTemplate,
    desired: Vec<DesiredEndpoint>,
    existing: &[Arc<EndpointSlice>],
) -> SliceChanges {
    let mut groups = Groups::default();
    for DesiredEndpoint {
        family,
        ports,
        endpoint,
    } in desired
    {
        let group = groups.entry(family, &ports);
        group.desired.insert(endpoint_identity(&endpoint), endpoint);
    }
    for slice in existing {
        let family = if slice.address_type == "IPv6" {
            IpFamily::V6
        } else {
            IpFamily::V4
        };
        let ports = slice.ports.as_deref().unwrap_or_default();
        groups.entry(family, ports).slices.push(slice.clone());
    }
    for family in &template.families {
        // A placeholder shows watchers that the controller has processed the service.
        let has_endpoints = groups
            .0
            .values()
            .any(|group| group.family == *family && !group.desired.is_empty());
        if !has_endpoints {
            groups.entry(*family, &[]).placeholder = true;
        }
    }
    let mut changes = SliceChanges::default();
    groups
        .0
        .into_values()
        .for_each(|group| group.plan(template, &mut changes));
    changes
}

#[derive(Default)]
struct Groups(BTreeMap<PortMapKey, Group>);

impl Groups {
    fn entry(&mut self, family: IpFamily, ports: &[EndpointPort]) -> &mut Group {
        self.0
            .entry(port_map_key(family, ports))
            .or_insert_with(|| Group::new(family, ports.to_vec()))
    }
}

/// Endpoints and slices of one port map key.
struct Group {
    family: IpFamily,
    ports: Vec<EndpointPort>,
    /// Endpoints that have no slice yet, by identity, so that equal inputs give equal slices.
    desired: BTreeMap<String, Endpoint>,
    slices: Vec<Arc<EndpointSlice>>,
    /// Keeps one empty slice if there are no endpoints.
    placeholder: bool,
}

/// An existing slice with its new endpoints.
struct PlannedSlice {
    /// The slice without its endpoints.
    slice: EndpointSlice,
    endpoints: Vec<Endpoint>,
    changed: bool,
}

impl Group {
    fn new(family: IpFamily, ports: Vec<EndpointPort>) -> Self {
        Self {
            family,
            ports,
            desired: BTreeMap::new(),
            slices: Vec::new(),
            placeholder: false,
        }
    }

    /// Mirrors reconcileByPortMapping.
    fn plan(mut self, template: &SliceTemplate, changes: &mut SliceChanges) {
        let mut planned: Vec<_> = std::mem::take(&mut self.slices)
            .into_iter()
            .map(|slice| self.retain_desired(template, &slice))
            .collect();
        self.fill_slices(&mut planned);
        let mut kept = 0;
        for PlannedSlice {
            mut slice,
            endpoints,
            changed,
        } in planned
        {
            let is_empty = endpoints.is_empty();
            slice.endpoints = Some(endpoints);
            // One empty slice is kept as the placeholder instead of being deleted and created
            // again.
            if is_empty && !(self.placeholder && kept == 0) {
                changes.delete.push(slice);
                continue;
            }
            kept += 1;
            if changed {
                changes.update.push(slice);
            }
        }
        let remaining: Vec<_> = std::mem::take(&mut self.desired).into_values().collect();
        for endpoints in remaining.chunks(MAX_ENDPOINTS_PER_SLICE) {
            changes
                .create
                .push(self.new_slice(template, endpoints.to_vec()));
            kept += 1;
        }
        if self.placeholder && kept == 0 {
            changes.create.push(self.new_slice(template, Vec::new()));
        }
    }

    /// The slice with those of its endpoints that are desired, in their current state. They are
    /// removed from `desired`.
    fn retain_desired(&mut self, template: &SliceTemplate, slice: &EndpointSlice) -> PlannedSlice {
        // Endpoints stay in their slice even if fewer slices would suffice: every moved endpoint is
        // sent to every node that watches slices.
        let old = slice.endpoints.as_deref().unwrap_or_default();
        let endpoints: Vec<_> = old
            .iter()
            .filter_map(|endpoint| self.desired.remove(&endpoint_identity(endpoint)))
            .collect();
        let changed = endpoints != old || slice.metadata.labels != template.meta.labels;
        let mut slice = slice.clone();
        slice.metadata.labels.clone_from(&template.meta.labels);
        PlannedSlice {
            slice,
            endpoints,
            changed,
        }
    }

    /// Adds the remaining endpoints to slices that are updated anyway. The remainder beyond full
    /// slices goes to the unchanged slice that it fills best, as in getSliceToFill.
    fn fill_slices(&mut self, planned: &mut [PlannedSlice]) {
        let capacity =
            |slice: &PlannedSlice| MAX_ENDPOINTS_PER_SLICE.saturating_sub(slice.endpoints.len());
        // These slices are written in any case, so filling them costs no additional update.
        for slice in planned.iter_mut().filter(|slice| slice.changed) {
            self.move_endpoints(slice, capacity(slice));
        }
        if self.desired.is_empty() {
            return;
        }
        // Full slices are created from the rest, so only the remainder needs a slice with capacity.
        let remainder = self.desired.len() % MAX_ENDPOINTS_PER_SLICE;
        let slice_to_fill = planned
            .iter_mut()
            .filter(|slice| remainder > 0 && capacity(slice) >= remainder)
            .min_by_key(|slice| capacity(slice));
        if let Some(slice) = slice_to_fill {
            self.move_endpoints(slice, remainder);
        }
    }

    fn move_endpoints(&mut self, slice: &mut PlannedSlice, count: usize) {
        for _ in 0..count {
            let Some((_, endpoint)) = self.desired.pop_first() else {
                return;
            };
            slice.endpoints.push(endpoint);
            slice.changed = true;
        }
    }

    fn new_slice(&self, template: &SliceTemplate, endpoints: Vec<Endpoint>) -> EndpointSlice {
        EndpointSlice {
            metadata: template.meta.clone(),
            address_type: self.family.address_type().into(),
            ports: Some(self.ports.clone()),
            endpoints: Some(endpoints),
        }
    }
}

#[cfg(test)]
mod tests;
