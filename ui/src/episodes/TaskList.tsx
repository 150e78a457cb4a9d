/** The tasks of a run: how each one fared from step to step, and which turned from failing to solved or back. */

import { useEffect } from 'preact/hooks'

import { Name } from '../common/Name'
import { Empty, Failure, Loading } from '../common/Notice'
import { Select } from '../common/Select'
import type { Run, TaskRow } from '../data/types'
import { VirtualList } from '../list/VirtualList'
import { filterOf, go, usePlace } from '../state/place'
import { useSource } from '../state/source'
import { integer, rate } from '../text/format'
import { t } from '../text/translate'
import { useRows } from './pages'

const ROW = 62
/** Steps that are drawn: the first ones and the last ones of a task that has more. */
const MOST_STEPS = 24

export function TaskList({ run, written }: { run: Run | null; written: number }) {
  const source = useSource()
  const place = usePlace()
  // Success over steps says most of the tasks that are measured again and again.
  const split = place.split || (run?.steps.some((row) => row.split === 'validation') ? 'validation' : '')
  const filter = { ...filterOf(place), split }
  const asked = { by: place.by || 'change', order: place.by === 'task' ? 'asc' : 'desc', turned: place.turned }
  const key = `${place.run} ${JSON.stringify([filter, asked])}`
  const rows = useRows<TaskRow>(key, (offset, limit) => source.tasks(place.run ?? '', filter, asked, offset, limit))
  useEffect(() => {
    if (written > 0) rows.again()
  }, [written])
  return (
    <>
      <div class="filter-row task-bar">
        <Select
          label={t('sort')}
          hideLabel
          value={place.by || 'change'}
          options={[
            ['change', t('by_change')],
            ['last', t('by_last')],
            ['task', t('task')],
          ]}
          onChange={(by) => go({ by }, { replace: true })}
        />
        <Select
          label={t('turned')}
          hideLabel
          value={place.turned}
          options={[
            ['', t('all_tasks')],
            ['solved', t('turned_solved')],
            ['broken', t('turned_broken')],
          ]}
          onChange={(turned) => go({ turned }, { replace: true })}
        />
        <span class="count faint end">{rows.total === null ? '' : t('n_tasks', { n: integer(rows.total) })}</span>
      </div>
      {rows.error ? (
        <Failure error={rows.error} again={rows.again} />
      ) : rows.total === null ? (
        <Loading />
      ) : rows.total === 0 ? (
        <Empty title={t('no_task_match')} hint={t('no_match_hint')} />
      ) : (
        <VirtualList
          label={t('tasks')}
          length={rows.total}
          height={() => ROW}
          identity={key}
          onWindow={rows.need}
          render={(index) => <Row key={index} row={rows.row(index)} split={split} />}
        />
      )}
    </>
  )
}

function Row({ row, split }: { row: TaskRow | null; split: string }) {
  if (row === null) return <div class="episode-row pending" role="listitem" aria-busy="true" />
  const [first, last] = [row.steps[0]!, row.steps.at(-1)!]
  return (
    <div role="listitem" class="episode-row task-row">
      <button title={t('open_task')} onClick={() => go({ list: '', task_id: row.task_id, split, sort: 'step', order: '', id: '' })} data-task={row.task_id}>
        <span class="task-asked">
          <span class="question">{row.question || row.task_id}</span>
          <span class="faint task-id">
            <Name text={row.task_id} />
          </span>
        </span>
        <Steps row={row} />
        <span class="task-rates">
          <span>
            {rate(share(first))} → <b>{rate(share(last))}</b>
          </span>
          {row.turned && <span class={`chip is-${row.turned === 'solved' ? 'success' : 'error'}`}>{t(`turned_${row.turned}`)}</span>}
        </span>
      </button>
    </div>
  )
}

/** A bar a step, as high as the part of its episodes that succeeded. */
function Steps({ row }: { row: TaskRow }) {
  const half = MOST_STEPS / 2
  const shown = row.steps.length <= MOST_STEPS ? row.steps : [...row.steps.slice(0, half), ...row.steps.slice(-half)]
  const summary = shown.map((step) => `${t('of_steps', { n: step[0] })}: ${step[2]}/${step[1]}`).join('\n')
  return (
    <svg class="task-steps" width={shown.length * 7} height="28" viewBox={`0 0 ${shown.length * 7} 28`} role="img" aria-label={summary}>
      <title>{summary}</title>
      {shown.map((step, at) => {
        const height = Math.max(2, 28 * share(step))
        return (
          <g key={step[0]}>
            <rect class="task-step-of" x={at * 7} y="0" width="5" height="28" />
            <rect class={share(step) >= 0.5 ? 'task-step-on' : 'task-step'} x={at * 7} y={28 - height} width="5" height={height} />
          </g>
        )
      })}
    </svg>
  )
}

function share([, episodes, successes]: TaskRow['steps'][number]): number {
  return episodes > 0 ? successes / episodes : 0
}
