/** The list of runs: sorted by any column, filtered, and several of them chosen for their curves. */

import { useMemo, useState } from 'preact/hooks'

import { Empty } from '../common/Notice'
import { Select } from '../common/Select'
import { RunStatus } from '../common/Status'
import type { Open, RunInfo, Status } from '../data/types'
import { language } from '../state/preferences'
import { openRun } from '../state/place'
import { FIRST_METRICS } from '../dashboard/charts'
import { useSource } from '../state/source'
import { useStore } from '../state/store'
import { t } from '../text/translate'
import { columns, differing, settingsShown, sortedRuns, type Column, type Order } from './columns'
import { NotesDialog } from './NotesDialog'
import { isOutside, runsMeant } from './runsMeant'

const STATUSES: Status[] = ['running', 'finished', 'failed', 'interrupted', 'killed']

interface Props {
  open: Open | null
  runs: RunInfo[]
  /** Asks for the runs again. */
  onChanged: () => void
}

export function RunTable({ open, runs: all, onChanged }: Props) {
  const [archived, setArchived] = useState(false)
  const [noted, setNoted] = useState<RunInfo | null>(null)
  const isServed = useSource().served
  const away = all.filter(({ notes }) => notes.archived).length
  const runs = useMemo(() => (archived ? all : all.filter(({ notes }) => !notes.archived)), [all, archived])
  const spoken = useStore(language)
  const [wanted, setWanted] = useState('')
  const [status, setStatus] = useState('')
  const [model, setModel] = useState('')
  const [order, setOrder] = useState<Order>({ key: 'started', descending: true })
  const [chosen, setChosen] = useState<string[]>([])
  const [settings, setSettings] = useState<string[] | null>(null)
  const root = open?.root ?? ''
  const models = useMemo(() => [...new Set(runs.flatMap((info) => info.model ?? []))].sort(), [runs])
  const found = useMemo(
    () => runsMeant(runs, wanted, root).filter((info) => (status === '' || info.status === status) && (model === '' || info.model === model)),
    [runs, wanted, root, status, model],
  )
  const differ = useMemo(() => differing(found), [found])
  const shown = useMemo(() => columns(settingsShown(differ, settings)), [differ, settings, spoken])
  const sorted = sortedRuns(found, shown.find(({ key }) => key === order.key), order.descending)
  const choose = (event: SubmitEvent): void => {
    event.preventDefault()
    if (found[0] && found.length === 1) openRun(found[0].run)
  }
  const compared = chosen.filter((run) => runs.some((info) => info.run === run))
  return (
    <main class="page">
      <form class="page-heading" onSubmit={choose}>
        <h1>{t('runs')}</h1>
        <input
          type="search"
          data-search
          value={wanted}
          placeholder={t('find_run')}
          aria-label={t('find_run')}
          onInput={(event) => setWanted(event.currentTarget.value)}
        />
        <Select label={t('status')} hideLabel value={status} onChange={setStatus} options={[['', t('all_statuses')], ...STATUSES.map((each): [string, string] => [each, t(`status_${each}`)])]} />
        {models.length > 1 && <Select label={t('model')} hideLabel value={model} onChange={setModel} options={[['', t('all_models')], ...models.map((each): [string, string] => [each, each])]} />}
        {differ.length > 0 && <SettingsChoice differ={differ} shown={settingsShown(differ, settings)} onChange={setSettings} />}
        {compared.length > 1 && (
          <button type="button" class="compare-runs" onClick={() => openRun(compared[0]!, { view: 'dashboard', over: compared.slice(1) })}>
            {t('compare_runs', { n: compared.length })}
          </button>
        )}
        {away > 0 && (
          <label class="field">
            <input type="checkbox" checked={archived} onChange={(event) => setArchived(event.currentTarget.checked)} /> {t('show_archived', { n: away })}
          </label>
        )}
        <span class="faint path">{root}</span>
      </form>
      {found.length === 0 ? (
        <NothingShown outside={isOutside(wanted, root) ? wanted.trim() : ''} root={root} isFiltered={runs.length > 0} />
      ) : (
        <div class="table-scroller" tabIndex={0} role="region" aria-label={t('runs')}>
          <table class="run-table">
            <thead>
              <tr>
                <th scope="col">
                  <span class="run-cell">
                    <input
                      type="checkbox"
                      aria-label={t('select_all')}
                      title={t('select_all')}
                      checked={sorted.length > 0 && sorted.every(({ run }) => chosen.includes(run))}
                      onChange={(event) => setChosen(event.currentTarget.checked ? sorted.map(({ run }) => run) : [])}
                    />
                    {t('experiment')}
                  </span>
                </th>
                <th scope="col">{t('status')}</th>
                {shown.map((column) => (
                  <Heading key={column.key} column={column} order={order} onOrder={setOrder} />
                ))}
              </tr>
            </thead>
            <tbody>
              {sorted.map((info) => (
                <RunRow
                  key={info.run}
                  info={info}
                  shown={shown}
                  isChosen={chosen.includes(info.run)}
                  {...(isServed ? { onNote: () => setNoted(info) } : {})}
                  onChoose={(is) => setChosen(is ? [...chosen, info.run] : chosen.filter((run) => run !== info.run))}
                />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {noted && <NotesDialog info={noted} onClose={() => setNoted(null)} onSaved={onChanged} />}
    </main>
  )
}

function Heading({ column, order, onOrder }: { column: Column; order: Order; onOrder: (order: Order) => void }) {
  const here = order.key === column.key
  const sort = (): void => onOrder({ key: column.key, descending: here ? !order.descending : column.isNumber })
  return (
    <th scope="col" title={column.hint} class={column.isNumber ? 'number' : ''} aria-sort={here ? (order.descending ? 'descending' : 'ascending') : undefined}>
      <button class="link" title={t('sort_by', { column: column.title })} onClick={sort}>
        {column.title}
        {here && <span aria-hidden="true"> {order.descending ? '↓' : '↑'}</span>}
      </button>
    </th>
  )
}

/** Which of the settings that differ are columns. */
function SettingsChoice({ differ, shown, onChange }: { differ: string[]; shown: string[]; onChange: (chosen: string[]) => void }) {
  return (
    <details class="settings-choice">
      <summary>
        {t('differing')} <span class="faint count">{differ.length}</span>
      </summary>
      <div>
        {differ.map((key) => (
          <label key={key}>
            <input
              type="checkbox"
              checked={shown.includes(key)}
              onChange={(event) => onChange(event.currentTarget.checked ? [...shown, key] : shown.filter((each) => each !== key))}
            />{' '}
            {key}
          </label>
        ))}
      </div>
    </details>
  )
}

/** Why no run is listed; a folder that is not served is opened by a viewer of its own. */
function NothingShown({ outside, root, isFiltered }: { outside: string; root: string; isFiltered: boolean }) {
  if (outside) return <Empty title={t('outside', { root })} hint={t('outside_hint', { command: `astune view ${outside}` })} />
  return <Empty title={t(isFiltered ? 'no_run_match' : 'no_runs')} hint={t(isFiltered ? 'no_run_match_hint' : 'no_runs_hint')} />
}

interface RowProps {
  info: RunInfo
  shown: Column[]
  isChosen: boolean
  onChoose: (is: boolean) => void
  onNote?: () => void
}

function RunRow({ info, shown, isChosen, onChoose, onNote }: RowProps) {
  const { notes } = info
  const source = useSource()
  return (
    <tr class={notes.archived ? 'archived' : ''} onClick={() => openRun(info.run)}>
      <th scope="row">
        <div class="run-cell">
          <input
            type="checkbox"
            aria-label={t('choose_for_curves', { run: `${info.experiment} ${info.name}` })}
            checked={isChosen}
            onClick={(event) => event.stopPropagation()}
            onChange={(event) => {
              if (event.currentTarget.checked) source.prepare(info.run, FIRST_METRICS)
              onChoose(event.currentTarget.checked)
            }}
          />
          <span>
            <button class="link" onClick={() => openRun(info.run)}>
              {info.experiment}
            </button>
            <div class="faint">{info.name}</div>
            {notes.tags.length > 0 && (
              <div class="tags">
                {notes.tags.map((tag) => (
                  <span key={tag} class="chip">
                    {tag}
                  </span>
                ))}
              </div>
            )}
            {notes.note && (
              <div class="faint note" title={notes.note}>
                {notes.note}
              </div>
            )}
          </span>
          {onNote && (
            <button
              class="icon edit-notes"
              aria-label={t('edit_notes', { run: `${info.experiment} ${info.name}` })}
              title={t('notes')}
              onClick={(event) => {
                event.stopPropagation()
                onNote()
              }}
            >
              ✎
            </button>
          )}
        </div>
      </th>
      <td>
        <RunStatus status={info.status} />
        {info.message && <div class="faint run-message">{info.message}</div>}
        {info.problems.length > 0 && <div class="warn">{info.problems[0]}</div>}
      </td>
      {shown.map((column) => (
        <td key={column.key} class={column.isNumber ? 'number' : ''} title={column.key === 'model' ? (info.model ?? undefined) : undefined}>
          {column.text(info)}
        </td>
      ))}
    </tr>
  )
}
