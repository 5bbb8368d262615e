//! Experiences as payloads. An experience crosses the border as a dictionary of what is set in it:
//! arrays as the bytes of their elements, free-form values as JSON text.

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use rollway_experience::{
    Array, CustomField, Eid, Element, Experience, ExperienceFields, ExperienceKind, FieldError,
    FieldProblem, IdPart, Json, ModelVersions, Tensor, VersionSpan, deserialize_many,
    serialize_many,
};

use crate::batch_id::PyBatchId;
use crate::errors;

/// Makes a payload of experiences.
#[pyfunction]
pub(crate) fn encode_experiences<'py>(
    py: Python<'py>,
    items: Vec<Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let experiences = items.iter().map(experience).collect::<PyResult<Vec<_>>>()?;
    let payload = py.detach(|| serialize_many(&experiences));
    let payload = payload.map_err(|error| errors::payload(py, &error))?;
    Ok(PyBytes::new(py, &payload))
}

/// Reads a payload. Arrays come as pairs of where they begin in the payload and how many bytes they
/// have, so that Python can look at them where they lie.
#[pyfunction]
pub(crate) fn decode_experiences<'py>(
    py: Python<'py>,
    payload: PyBackedBytes,
) -> PyResult<Bound<'py, PyList>> {
    let payload = Bytes::from_owner(payload);
    let begin = payload.as_ptr() as usize;
    let experiences = py.detach(|| deserialize_many(payload));
    let experiences = experiences.map_err(|error| errors::payload(py, &error))?;
    let items = experiences.into_iter().map(|experience| item(py, experience, begin));
    PyList::new(py, items.collect::<PyResult<Vec<_>>>()?)
}

fn experience(item: &Bound<'_, PyDict>) -> PyResult<Experience> {
    let mut fields = ExperienceFields::default();
    let mut kind = ExperienceKind::SingleTurn;
    for (key, value) in item.iter() {
        let key = key.cast::<PyString>()?.to_str()?.to_owned();
        if key == "kind" {
            kind = kind_of(value.extract()?)?;
        } else {
            set(&mut fields, &key, &value)?;
        }
    }
    Experience::with_kind(kind, fields).map_err(refused)
}

fn set(fields: &mut ExperienceFields, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match key {
        "eid" => {
            let (batch, task, run, step, suffix) = value.extract()?;
            fields.eid = Eid { batch: part(batch), task: part(task), run, step, suffix };
        }
        "tokens" => fields.tokens = array(key, value)?,
        "prompt_length" => fields.prompt_length = value.extract()?,
        "logprobs" => fields.logprobs = Some(array(key, value)?),
        "reward" => fields.reward = Some(value.extract()?),
        "token_level_reward" => fields.token_level_reward = Some(array(key, value)?),
        "advantages" => fields.advantages = Some(array(key, value)?),
        "returns" => fields.returns = Some(array(key, value)?),
        "teacher_logprobs" => fields.teacher_logprobs = Some(array(key, value)?),
        "action_mask" => fields.action_mask = Some(array(key, value)?),
        "chosen" => fields.chosen = Some(array(key, value)?),
        "rejected" => fields.rejected = Some(array(key, value)?),
        "truncate_status" => {
            fields.truncate_status = Some(value.extract::<&str>()?.parse().map_err(refused)?);
        }
        "info" => fields.info = json(key, value)?,
        "metrics" => fields.metrics = value.extract()?,
        "prompt_text" => fields.prompt_text = Some(value.extract()?),
        "response_text" => fields.response_text = Some(value.extract()?),
        "messages" => fields.messages = Some(json(key, value)?),
        "tools" => fields.tools = Some(json(key, value)?),
        "chosen_messages" => fields.chosen_messages = Some(json(key, value)?),
        "rejected_messages" => fields.rejected_messages = Some(json(key, value)?),
        "multi_modal_inputs" => {
            for (name, tensor) in value.cast::<PyDict>()?.iter() {
                let (dtype, shape, data): (String, Vec<usize>, PyBackedBytes) = tensor.extract()?;
                let at = |problem: FieldProblem| refused(problem.at("multi_modal_inputs"));
                let dtype = dtype.parse().map_err(refused)?;
                let tensor = Tensor::new(dtype, shape, Bytes::from_owner(data)).map_err(at)?;
                fields.multi_modal_inputs.insert(name.extract()?, tensor);
            }
        }
        "custom_fields" => {
            let given: Vec<(String, String, String)> = value.extract()?;
            let named = given.into_iter().map(|(source_field, destination_field, dtype)| {
                let dtype = dtype.parse().map_err(refused)?;
                Ok(CustomField { source_field, destination_field, dtype })
            });
            fields.custom_fields = named.collect::<PyResult<_>>()?;
        }
        "model_versions" => {
            let runs: Vec<(Option<u64>, u32)> = value.extract()?;
            let runs = runs.into_iter().map(|(version, tokens)| VersionSpan { version, tokens });
            let versions = ModelVersions::from_spans(runs);
            fields.model_versions =
                Some(versions.map_err(|problem| refused(problem.at(key.to_owned())))?);
        }
        other => return Err(PyValueError::new_err(format!("an experience has no `{other}`"))),
    }
    Ok(())
}

fn array<T: Element>(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Array<T>> {
    let data = Bytes::from_owner(value.extract::<PyBackedBytes>()?);
    Array::from_bytes(data).map_err(|problem| refused(problem.at(key.to_owned())))
}

fn json(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Json> {
    let text = value.cast::<PyString>()?.to_str()?.to_owned();
    Json::new(text).map_err(|problem| refused(problem.at(key.to_owned())))
}

fn part(id: PyBatchId) -> IdPart {
    IdPart::from(&id.0)
}

fn refused(error: FieldError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn kind_of(name: &str) -> PyResult<ExperienceKind> {
    [ExperienceKind::SingleTurn, ExperienceKind::MultiTurn, ExperienceKind::Dpo]
        .into_iter()
        .find(|kind| kind.name() == name)
        .ok_or_else(|| PyValueError::new_err(format!("unknown kind of experience `{name}`")))
}

fn item<'py>(
    py: Python<'py>,
    experience: Experience,
    begin: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let item = PyDict::new(py);
    item.set_item("kind", experience.kind().name())?;
    let fields = experience.into_fields();
    let Eid { batch, task, run, step, suffix } = fields.eid;
    let eid = (id(py, batch)?, id(py, task)?, run, step, suffix);
    item.set_item("eid", eid)?;
    item.set_item("tokens", byte_range(&fields.tokens, begin))?;
    item.set_item("prompt_length", fields.prompt_length)?;
    item.set_item("reward", fields.reward)?;
    item.set_item("truncate_status", fields.truncate_status.map(|status| status.name()))?;
    item.set_item("info", fields.info.to_string())?;
    item.set_item("metrics", fields.metrics)?;
    item.set_item("prompt_text", fields.prompt_text)?;
    item.set_item("response_text", fields.response_text)?;
    let floats = [
        ("logprobs", fields.logprobs),
        ("token_level_reward", fields.token_level_reward),
        ("advantages", fields.advantages),
        ("returns", fields.returns),
        ("teacher_logprobs", fields.teacher_logprobs),
    ];
    for (name, array) in floats {
        item.set_item(name, array.map(|array| byte_range(&array, begin)))?;
    }
    item.set_item("action_mask", fields.action_mask.map(|array| byte_range(&array, begin)))?;
    item.set_item("chosen", fields.chosen.map(|array| byte_range(&array, begin)))?;
    item.set_item("rejected", fields.rejected.map(|array| byte_range(&array, begin)))?;
    let texts = [
        ("messages", fields.messages),
        ("tools", fields.tools),
        ("chosen_messages", fields.chosen_messages),
        ("rejected_messages", fields.rejected_messages),
    ];
    for (name, text) in texts {
        item.set_item(name, text.map(|text| text.to_string()))?;
    }
    let inputs = PyDict::new(py);
    for (name, tensor) in fields.multi_modal_inputs {
        let (dtype, shape, data) = tensor.into_parts();
        inputs.set_item(name, (dtype.name(), shape, PyBytes::new(py, &data)))?;
    }
    item.set_item("multi_modal_inputs", inputs)?;
    let custom = fields.custom_fields.into_iter().map(|field| {
        let CustomField { source_field, destination_field, dtype } = field;
        (source_field, destination_field, dtype.name())
    });
    item.set_item("custom_fields", custom.collect::<Vec<_>>())?;
    let versions = fields.model_versions.map(|versions| {
        let runs = versions.spans().iter();
        runs.map(|run| (run.version, run.tokens)).collect::<Vec<_>>()
    });
    item.set_item("model_versions", versions)?;
    Ok(item)
}

/// Returns where an array begins in its payload and how many bytes it has.
fn byte_range<T: Element>(array: &Array<T>, begin: usize) -> (usize, usize) {
    let bytes = array.bytes();
    if bytes.is_empty() { (0, 0) } else { (bytes.as_ptr() as usize - begin, bytes.len()) }
}

fn id(py: Python<'_>, part: IdPart) -> PyResult<Py<PyAny>> {
    Ok(match part {
        IdPart::Number(number) => number.into_pyobject(py)?.into_any().unbind(),
        IdPart::Text(text) => text.into_pyobject(py)?.into_any().unbind(),
    })
}
